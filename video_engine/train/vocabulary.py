"""Words of the prompt templates: nouns, fillers, speed words and the phrases of each motion.

``{d}`` stands for a direction, ``{n}`` for a noun. Phrases under a kind without a direction in its
name have no ``{d}``.
"""


def _split(text: str, **words: str) -> tuple[str, ...]:
    for key, word in words.items():
        text = text.replace("{" + key + "}", word)
    return tuple(part for part in text.split(";") if part)


def _with_every(text: str, key: str, words: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(phrase for word in words for phrase in _split(text, **{key: word}))


NOUNS = _split(
    "cat;dog;horse;boat;ship;flower;tree;car;person;woman;man;girl;boy;child;face;bird;fish;"
    "balloon;house;tower;castle;bridge;mountain;rock;river;lake;sea;ocean;sun;moon;star;cloud;"
    "planet;rocket;plane;train;bus;bicycle;ball;cup;bottle;glass;table;chair;lamp;clock;book;"
    "statue;robot;monster;butterfly;bee;fox;wolf;bear;lion;elephant;rabbit;mouse;duck;swan;frog;"
    "turtle;snake;leaf;petal;grass;field;forest;desert;beach;island;street;city;village;garden;"
    "road;coin;apple;fruit;cake;candle;fire;lantern;kite;feather;curtain;flag;banner;dress;hair;"
    "hand;head;eye;hat;astronaut;soldier;king;queen;wizard;dancer;player;model;portrait;statue;"
    "building;temple;church;window;door;wall;picture;painting;scene;landscape;subject;object;"
    "figure;thing;water"
)

FILLERS = _split(
    "beautiful;cinematic;night;forest;at night;at sunset;at dawn;over the city;in the garden;4k;"
    "hdr;realistic;photo;high quality;detailed;dreamy;nice;please;soft light;golden hour;"
    "in the snow;in the rain;with bokeh;film look;epic;dramatic lighting;on the beach;"
    "in front of a house;vivid;colorful;vintage;black and white;of a cat;of the sea;of a flag;"
    "of a tree;of the lake;moody;studio portrait;masterpiece;a short clip;a video of;"
    "an animation of;ultra sharp;8k;calm mood;in the style of an old movie;a wide view;"
    "in a quiet room;near the river;with mountains;peaceful;mysterious;wonderful;smooth;steady;"
    "make it;animate;let;now;for this picture;of this photo;sky;ocean;flag;sunny;dark;bright;"
    "ancient;modern;famous;little;big;red;blue;green;white;lovely;past the {n};beside the {n};"
    "along the {n};across the {n};over the {n};of the {n};a photo of a {n};in front of the {n};"
    "near the {n};around us;a {n} with a {n};behind the {n};from the {n};in the {n};like a {n};"
    "through the {n};under the {n};between the {n} and the {n};to the {n};for us;very;perfectly"
)

SPEED_WORDS: dict[str, tuple[str, ...]] = {
    "slow": _split(
        "slow;slowly;gentle;gently;very slow;very slowly;slightly;softly;subtle;leisurely;"
        "gradual;gradually;calmly;in slow motion;a little;unhurried"
    ),
    "plain": ("",),
    "fast": _split(
        "fast;quick;quickly;rapid;rapidly;swift;swiftly;very fast;very quickly;speedy;"
        "at high speed;energetic;hurried;hastily;suddenly;speedily"
    ),
}

_PAN = (
    "pan {d};pan {d};camera pans {d};the camera pans {d};panning {d};pan to the {d};panned {d};"
    "the camera moves {d};camera moves to the {d};move the camera {d};move camera to the {d};"
    "truck {d};trucking shot {d};slide the camera {d};camera slides {d};track {d};pan shot {d};"
    "tracking shot to the {d};look {d};camera looks {d};scroll {d};camera travels {d};camera {d};"
    "the shot drifts {d};camera drifts {d};the view shifts {d};shift the frame {d};"
    "camera goes {d};the view moves {d};the camera is moving {d};camera movement {d};{d} pan;"
    "sweep {d};camera sweeps to the {d};the camera turns {d};the camera glides {d};"
    "a camera pan to the {d}"
)
_TILT_UP = (
    ";tilt up;tilt up;camera tilts up;tilting up;crane up;pedestal up;boom up;camera rises;"
    "the camera ascends;tilt upwards;camera lifts;tilt the camera up;jib up;look upward;"
    "crane shot up;pan upward;camera climbs;move up;pan upwards"
)
_TILT_DOWN = (
    ";tilt down;tilt down;camera tilts down;tilting down;crane down;pedestal down;boom down;"
    "camera lowers;the camera descends;tilt downwards;camera sinks;tilt the camera down;jib down;"
    "look downward;crane shot down;pan downward;camera drops;move down;pan downwards"
)
_ROTATE = (
    "rotate {c};rotate {c};rotate the picture {c};turn {c};spin {c};roll {c};camera rolls {c};"
    "the image rotates {c};rotating {c};spinning {c};{c} rotation;rotate to the {r};rotate {r};"
    "roll {r};roll to the {r};tilt {r};tilt to the {r};turning {c};revolve {c};{c} spin;"
    "swivel {c};twist {c};the {n} rotates {c};the {n} spins {c};rotation {c};rolled {c};"
    "dutch tilt {r};the scene turns {c};whirl {c};the world spins {c}"
)
_OBJECT = (
    "the {n} moves {d};the {n} moves {d};{n} moves {d};{n} moves to the {d};the {n} goes {d};"
    "the {n} slides {d};the {n} drifts {d};the {n} glides {d};the {n} travels {d};{n} shifts {d};"
    "move the {n} {d};the {n} is moving {d};make the {n} move {d};the {n} flies {d};"
    "the {n} floats {d};{n} heads {d};push the {n} {d};let the {n} move {d};"
    "the {n} moving to the {d};a {n} moves {d};the {n} wanders {d};"
    "the {n} in the picture moves {d};the {n} is going to the {d};a {n} goes {d};"
    "the big {n} moves {d};the {n} {n} moves {d}"
)
_OBJECT_LEVEL = (
    ";the {n} walks {d};the {n} runs {d};the {n} drives {d};the {n} swims {d};the {n} steps {d};"
    "the {n} sails {d};the {n} rolls {d};the {n} walking {d};the {n} is running {d};"
    "the {n} rides {d};the {n} crawls {d}"
)
_OBJECT_UP = (
    ";the {n} rises;the {n} lifts off;the {n} takes off;the {n} climbs up;the {n} ascends;"
    "raise the {n};lift the {n};{n} rising;the {n} goes upwards;the {n} jumps up;"
    "{n} moves upward;launch the {n}"
)
_OBJECT_DOWN = (
    ";the {n} falls;the {n} sinks;the {n} drops;the {n} descends;the {n} falls down;"
    "lower the {n};{n} falling;the {n} goes downwards;the {n} is sinking;{n} moves downward;"
    "drop the {n};the {n} lands"
)


PHRASES: dict[str, tuple[str, ...]] = {
    "pan left": _with_every(_PAN, "d", ("left", "left", "leftward", "left side"))
    + _split("pan leftwards"),
    "pan right": _with_every(_PAN, "d", ("right", "right", "rightward", "right side"))
    + _split("pan rightwards"),
    "pan up": _split(_PAN + _TILT_UP + _TILT_UP, d="up"),
    "pan down": _split(_PAN + _TILT_DOWN + _TILT_DOWN, d="down"),
    "zoom in": _split(
        "zoom in;zoom in;zoom in;zoom;zoom in on the {n};zoom into the {n};camera zooms in;"
        "zooms in;the camera zooms in on the {n};push in;push in on the {n};move closer;"
        "get closer;come closer to the {n};close in on the {n};closer to the {n};enlarge the {n};"
        "magnify;zoom towards the {n};zoom toward the {n};a zoom in;zoom in shot;"
        "close up on the {n};camera pushes in;punch in;approach the {n};move closer to the {n};"
        "zoom to the {n};push in towards the {n};the camera gets closer;bring the {n} closer;"
        "crash zoom;zoom closer"
    ),
    "zoom out": _split(
        "zoom out;zoom out;zoom out;zoom away;camera zooms out;zooms out;the camera zooms out;"
        "pull out;pull back;camera pulls back;the camera pulls out;back away from the {n};"
        "zoom out from the {n};reveal the whole scene;zoom outwards;shrink the picture;"
        "widen the view;get further away;move further away from the {n};zoom back;a zoom out;"
        "pull away from the {n};pull back to reveal the {n};wider view;zoom out to show the {n};"
        "step away from the {n};the view widens;farther away"
    ),
    "rotate cw": _with_every(_ROTATE.replace("{r}", "right"), "c", ("clockwise",) * 3)
    + _split("clockwise;clock wise rotation;clockwise;rotate clock wise"),
    "rotate ccw": _with_every(
        _ROTATE.replace("{r}", "left"),
        "c",
        ("counterclockwise", "anticlockwise", "counter clockwise", "anti clockwise"),
    )
    + _split("counterclockwise;anticlockwise;ccw rotation"),
    "dolly in": _split(
        "dolly in;dolly in;dolly forward;fly forward;fly into the scene;move forward;"
        "walk forward;camera moves forward;drive forward;fly through the scene;"
        "the camera advances;dolly;camera flies forward;go forward;travel forward;"
        "dolly shot forward;dolly towards the {n};dolly toward the {n};camera dollies in;"
        "fly through the {n};forward;first person walk forward;moving forward;"
        "drone flies forward;fly towards the {n};step into the scene;dolly into the {n}"
    ),
    "dolly out": _split(
        "dolly out;dolly out;dolly back;fly backward;fly backwards;move backward;move backwards;"
        "walk backward;camera moves backward;camera moves back;the camera retreats;"
        "dolly backward;dolly away from the {n};drive backwards;go backwards;travel backward;"
        "backward;camera flies back;dolly shot backward;fly back;camera dollies out;"
        "drone flies backward;fly away from the {n};moving backwards;reverse dolly"
    ),
    "sway": _split(
        "sway;the {n} sways;sway in the wind;swaying in the wind;the {n} is swaying;sways;"
        "the {n} sways in the breeze;swaying in the breeze;blowing in the wind;in the wind;windy;"
        "wind blows through the {n};a breeze moves the {n};breeze blowing;bend in the wind;"
        "the {n} moves in the wind;sway from side to side;the {n} swings;swing from side to side;"
        "the {n} bends in the wind;breeze;let the {n} sway;the {n} blows in the wind;swing;rustle"
    ),
    "wave": _split(
        "wave;the {n} waves;waving flag;waving;the flag waves;flutter;fluttering flag;undulate;"
        "the {n} undulates;the {n} flutters;billow;billowing cloth;the curtain billows;flap;"
        "flapping flag;wavy motion;wobble;wobbles;the {n} wobbles;wobble like jelly;"
        "wave like a flag;wavy;undulating;the flag is waving;cloth moves;fabric waves;"
        "let the {n} wave;jelly;distort"
    ),
    "ripple": _split(
        "ripple;ripples;water ripples;rippling water;the lake ripples;the water moves;"
        "water flows;waves on the water;sea waves;ocean waves;the river flows;flowing water;"
        "water shimmers;shimmering water;the sea moves;ripples on the lake;the water ripples;"
        "waves roll in;the {n} ripples;the surface ripples;waves on the sea;rippling;"
        "moving water;reflections ripple;waves in the ocean;the stream flows;shimmer;"
        "the waves move"
    ),
    "breathe": _split(
        "breathe;the {n} breathes;breathing;the {n} is breathing;pulse;pulsate;the {n} pulses;"
        "the {n} pulsates;heartbeat;inhale and exhale;throb;the {n} swells;expand and contract;"
        "breathes;breathing motion;a pulsing {n};pulsing;the {n} grows and shrinks;"
        "beat like a heart;the {n} inhales;breathing in and out;the {n} throbs;breath;"
        "deep breaths;let the {n} breathe"
    ),
    "float": _split(
        "float;the {n} floats;floating;the {n} is floating;hover;the {n} hovers;bob up and down;"
        "the {n} bobs;bobbing;levitate;the {n} levitates;floating in the air;"
        "the {n} floats in the air;hovering;float up and down;moves up and down;"
        "the {n} moves up and down;floats;weightless;the {n} hovers in the air;a floating {n};"
        "the {n} bobs up and down;let the {n} float;bounce;the {n} bounces up and down;"
        "suspended in the air;levitation"
    ),
    "shake": _split(
        "shake;shaky camera;handheld camera;camera shake;handheld;the camera shakes;shaking;"
        "earthquake;vibrate;the {n} vibrates;tremble;the {n} trembles;jitter;shaky;"
        "hand held camera;handheld shot;the ground shakes;vibration;shaky footage;rumble;"
        "the {n} shakes;jittery"
    ),
    "parallax": _split(
        "parallax;parallax effect;3d effect;depth effect;3d camera move;orbit;"
        "camera orbits the {n};3d;three dimensional;stereo effect;wiggle 3d;arc around the {n};"
        "orbit around the {n};parallax motion;2 5d effect;depth parallax;orbiting shot;"
        "parallax scrolling;parallaxing;3d photo;3d parallax;camera circles around the {n};"
        "show depth;depth motion;with parallax"
    ),
    "object left": _with_every(_OBJECT + _OBJECT_LEVEL, "d", ("left", "left", "to the left")),
    "object right": _with_every(_OBJECT + _OBJECT_LEVEL, "d", ("right", "right", "to the right")),
    "object up": _split(_OBJECT + _OBJECT_UP + _OBJECT_UP, d="up"),
    "object down": _split(_OBJECT + _OBJECT_DOWN + _OBJECT_DOWN, d="down"),
    "still": _split(
        "still;static;no motion;nothing moves;freeze;static shot;locked camera;hold still;"
        "motionless;do not move;still image;frozen;no movement;static camera;fixed camera;"
        "stand still;unmoving;everything stands still;freeze frame;remain still"
    ),
    "ambient": ("",),
}
