"""Boxes for untrusted code: images, bubblewrap, the persistent shell, transfers and limits."""
