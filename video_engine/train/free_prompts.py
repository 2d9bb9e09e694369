"""Forty prompts in free wording, each with at least one word that no training template holds.

They are for evaluation alone; ``tests`` checks that every one of them has an unseen word.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FreePrompt:
    """A prompt, the motions it asks for and its speed."""

    text: str
    kinds: tuple[str, ...]
    speed: str = "plain"


FREE_PROMPTS: tuple[FreePrompt, ...] = (
    FreePrompt("zooming in on the penguin", ("zoom in",)),
    FreePrompt("the lens zoomed in towards his whiskers", ("zoom in",)),
    FreePrompt("slowly zooming into the cathedral", ("zoom in",), "slow"),
    FreePrompt("I would like you to zoom onto the violin", ("zoom in",)),
    FreePrompt("zooming out from the volcano", ("zoom out",)),
    FreePrompt("pulling back to reveal the harbour", ("zoom out",)),
    FreePrompt("quickly zooming out, vineyard, drone view", ("zoom out",), "fast"),
    FreePrompt("the cameraman pans left across the harbour", ("pan left",)),
    FreePrompt("slow leftward panning, lighthouse in fog", ("pan left",), "slow"),
    FreePrompt("the camera is panning right along the skyline", ("pan right",)),
    FreePrompt("trucking right by the railway", ("pan right",)),
    FreePrompt("panning upwards along the skyscraper", ("pan up",)),
    FreePrompt("tilts up to the chandelier", ("pan up",)),
    FreePrompt("the camera tilted down to the pavement", ("pan down",)),
    FreePrompt("panned down towards the waterfall pool", ("pan down",)),
    FreePrompt("photo of a windmill rotated clockwise", ("rotate cw",)),
    FreePrompt("the planetarium dome revolves clockwise", ("rotate cw",)),
    FreePrompt("the kaleidoscope rotating counterclockwise", ("rotate ccw",)),
    FreePrompt("the carousel spinning anticlockwise rapidly", ("rotate ccw",), "fast"),
    FreePrompt("dollying in between marble columns", ("dolly in",)),
    FreePrompt("soar forward into the canyon", ("dolly in",)),
    FreePrompt("dollying out of the hallway", ("dolly out",)),
    FreePrompt("the penguin moved left", ("object left",)),
    FreePrompt("the dragon is sliding to the left", ("object left",)),
    FreePrompt("the submarine moves right", ("object right",)),
    FreePrompt("a kangaroo travelling to the right", ("object right",)),
    FreePrompt("the helicopter goes up", ("object up",)),
    FreePrompt("a squirrel moving up the oak", ("object up",)),
    FreePrompt("the parachute moves down", ("object down",)),
    FreePrompt("an acorn falls from its branch", ("object down",)),
    FreePrompt("bamboo swaying in the wind", ("sway",)),
    FreePrompt("the sunflower swayed in the wind", ("sway",)),
    FreePrompt("a pirate banner fluttering wildly", ("wave",)),
    FreePrompt("rippling pond with koi", ("ripple",)),
    FreePrompt("hedgehog breathing peacefully", ("breathe",)),
    FreePrompt("the jellyfish is hovering weightlessly", ("float",)),
    FreePrompt("an umbrella levitating", ("float",)),
    FreePrompt("parallaxed diorama, 3d", ("parallax",)),
    FreePrompt("utterly motionless snapshot of the chapel", ("still",)),
    FreePrompt("panning left and the jellyfish is floating", ("pan left", "float")),
)
