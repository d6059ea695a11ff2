"""The one list of plain words that every domain names its files, people and things from.

A small model copies words; a short shared list gives each a token of its own. No word is part of
another, so searching for one never finds another. Holds words only; picking is the domains'.
"""

_TEXT = """
    acacia agate alder almond alpaca amber anchor antelope anvil apple apricot apron archery
    argon aspen attic aurora badger baker balcony bamboo banana banjo banyan baobab barley barrel
    basalt basil basket beaver beetle beige bench beryl bicycle birch biscuit bison blanket
    blizzard bluebell bonnet boulder breeze bridge bronze bucket bugle burrow butcher butter
    cabbage cabinet camel candle canoe canyon caramel carbon caribou carpet carrot cashew castle
    cavern cedar celery cellar chapel cheese cherry chess chimney chisel cinnamon clarinet cliff
    clover cobalt cobra comet compass condor cookie copper coral cottage cougar coyote crayon
    cricket crimson cuckoo cumin curlew curtain cushion custard cyclone cymbal cypress dahlia
    daisy delta denim desert doctor dolphin donkey dragon drawer drizzle drum eclipse envelope
    equinox falcon farmer fencing fern ferret fiddle finch firefly fjord flannel flint flute
    foxglove frigate galaxy galleon garden garlic garnet gazelle gecko gerbil geyser giraffe
    glacier glider goblet goose granite grape gravel griffin guava hammer hamster harbor harp
    haystack hazel hedgehog helium heron herring hockey honey hornet hyena ibis iguana indigo
    iodine iris island ivory jackal jade jaguar jasmine jeweler jungle jupiter kayak kennel
    kestrel kettle khaki kiwi knight ladder lagoon lantern lapwing laurel lawyer leek lemon lemur
    lentil leopard lettuce lilac lime lizard llama lobster lotus lychee lynx mackerel magnet
    magpie mango maple marble marigold maroon marsh marten mattress meadow melon meteor midnight
    millet miner mitten monsoon moose mosquito moss muffin myrtle napkin nebula neon neptune
    nettle noodle nutmeg oasis oboe olive onion onyx opal orange orbit orchard oriole oyster
    paddle palace pancake panther papaya parrot parsley pasta pavilion peach pearl pebble pecan
    pelican pencil pendulum peony pepper phoenix piano pigeon pillow pilot pirate piston pitcher
    planet plateau pliers plover plumber pluto pony poplar poppy potato potter pretzel primrose
    prism pudding puffin pumpkin quartz quince rabbit radish rainbow raisin rake raven ribbon
    river robin rocket rosemary ruby rudder rugby rye saffron sailor salmon sandal sardine satin
    saturn saucepan savanna scarf schooner sculptor scythe sextant shark shovel shrimp sickle
    silver slate slipper solstice sorghum sparrow spatula spider spinach spruce squid stable
    stool stork summit sunset swallow swamp swan sweater syrup tailor teal teapot tempest tennis
    thistle thrush thunder thyme toffee tomato topaz torch tornado tortoise toucan tower tractor
    trombone
    trouser trumpet tuba tulip tundra tunnel turbine turnip unicorn uranus valley vanilla
    velvet venus violet viper volcano waffle wagon walnut wardrobe weasel weaver whale willow
    windmill wizard wrench yacht yogurt zebra zenith zeppelin zinc zipper
"""

WORDS: tuple[str, ...] = tuple(_TEXT.split())
