"""Methods over trained heads, and Draft & Verify, whose head is a set of layers: what each changes of `parts.head`."""

from __future__ import annotations

from .. import drafter_parts as parts
from ..recipe import Card, Options, Recipe
from ..shape_table import SHAPE_NAMES
from ..trained import shipped

TRAIN = "foredraft train makes them; name them with --drafter FOLDER"
SHIPPED = f"come with the package for smollm2 (eagle3 also for qwen-coder); for other models {TRAIN}"
FOREIGN = "heads published for vLLM and speculators (P-EAGLE); name the folder with --drafter FOLDER"
SHIPPED_KINDS = {folder.name for folder in shipped() if folder.parent.name == "smollm2"}


def head_row(
    name: str,
    kind: str,
    about: tuple[str, str, str, str],  # title, paper, parts, claim
    defaults: Options,
    make: parts.MakeParts | None = None,
    shapes: tuple[str, ...] = SHAPE_NAMES,
) -> Recipe:
    """A row over a trained head."""
    weights = SHIPPED if kind in SHIPPED_KINDS else FOREIGN if kind == "p-eagle" else TRAIN
    get = "download a published head" if weights == FOREIGN else f"foredraft train {kind} --target MODEL"
    card = Card(*about, weights=weights, needs="trained head", get=get)
    vocabulary = kind not in ("accept-head", "adaeagle", "sdsat")
    return Recipe(name, card, make or parts.head(kind), shapes, True, kind, vocabulary, True, defaults=defaults)


# Heads without attention take a step for a whole level; growing node by node would misuse them.
BY_LEVEL = tuple(name for name in SHAPE_NAMES if name != "dyspec")
TREE_OF_6, TREE_OF_4 = Options(shape="eagle2", draft_length=6), Options(shape="eagle2", draft_length=4)
TREE_OF_8 = Options(shape="eagle2", draft_length=8)
CHAIN_OF_5 = Options(shape="chain", draft_length=5)
TRAINED = (
    head_row(
        "eagle",
        "eagle",
        ("EAGLE", "Li et al. 2024 (arXiv 2401.15077)", "feature head, chain + p/q rule", "2.7-3.5x, LLaMA2-70B"),
        CHAIN_OF_5,
    ),
    head_row(
        "eagle2",
        "eagle",
        ("EAGLE-2", "Li et al. 2024 (arXiv 2406.16858)", "EAGLE's head, dynamic tree", "3.05-4.26x, 7-13B"),
        TREE_OF_6,
    ),
    head_row(
        "eagle3",
        "eagle3",
        ("EAGLE-3", "Li et al. 2025 (arXiv 2503.01840)", "three taps, trained unrolled, dynamic tree", "3.0-6.5x"),
        TREE_OF_6,
    ),
    head_row(
        "p-eagle",
        "p-eagle",
        (
            "P-EAGLE",
            "AWS 2026 (arXiv 2602.01469)",
            "EAGLE-3 with learnt placeholders: all levels in one pass of the head, chain",
            "1.12x over EAGLE-3, GPT-OSS 120B at batch 1",
        ),
        Options(shape="chain", draft_length=7),
    ),
    head_row(
        "griffin",
        "griffin",
        (
            "GRIFFIN",
            "Hu et al. 2025 (arXiv 2502.11018)",
            "token-aligned feature head, dynamic tree",
            "3.28x, LLaMA2-7B",
        ),
        TREE_OF_6,
    ),
    head_row(
        "dovetail",
        "dovetail",
        (
            "Dovetail",
            "Zhang et al. 2024 (arXiv 2412.18934)",
            "deep feature head with a gate, on the GPU while the target is on the CPU; small tree",
            "2.77x over the CPU alone, LLaMA2-7B",
        ),
        Options(shape="eagle2:nodes=16,width=10", draft_length=7, draft_device="auto"),
    ),
    head_row(
        "medusa",
        "medusa",
        ("Medusa", "Cai et al. 2024 (arXiv 2401.10774)", "independent heads, tree", "2.2-3.6x, Vicuna"),
        TREE_OF_4,
        shapes=BY_LEVEL,
    ),
    head_row(
        "mlp-speculator",
        "mlp-speculator",
        ("MLP speculator", "Wertheimer et al. 2024 (arXiv 2404.19124)", "token and state, tree", "2-3x, 7-20B"),
        TREE_OF_4,
        shapes=BY_LEVEL,
    ),
    head_row(
        "fastdraft",
        "fastdraft",
        ("FastDraft", "Zafrir et al. 2024 (arXiv 2411.11055)", "small stand-alone drafter, chain", "up to 2x"),
        CHAIN_OF_5,
    ),
    head_row(
        "specdec++",
        "accept-head",
        ("SpecDec++", "Huang et al. 2024 (arXiv 2405.19715)", "fastdraft, stops on predicted rejection", "2.04-2.26x"),
        Options(shape="chain", draft_length=10, stop="predicted-rejection:0.5"),
        parts.specdec,
        shapes=("chain",),
    ),
    head_row(
        "kangaroo",
        "kangaroo",
        ("Kangaroo", "Liu et al. 2024 (arXiv 2404.18911)", "early exit with adapter, confidence stop", "1.68x"),
        Options(shape="chain", draft_length=6, stop="confidence:0.4"),  # the paper uses 0.6, its code 0.4
        shapes=("chain",),
    ),
    head_row(
        "eesd",
        "eesd",
        ("EESD", "Liu et al. 2024 (arXiv 2406.03853)", "early exit, self-distilled, Thompson sampling stops", ""),
        Options(shape="chain", draft_length=8, stop="thompson"),
        shapes=("chain",),
    ),
    head_row(
        "adaeagle",
        "adaeagle",
        ("AdaEAGLE", "Zhang et al. 2024 (arXiv 2412.18910)", "EAGLE chain, length predicted from the state", "1.62x"),
        Options(shape="chain", draft_length=8),
        parts.adaeagle,
        shapes=("chain",),
    ),
    head_row(
        "koala",
        "koala",
        ("KOALA", "Zhang et al. 2024 (arXiv 2408.08146)", "EAGLE's head, two layers, adversarial", "10-14% over EAGLE"),
        TREE_OF_6,
    ),
    head_row(
        "koala-medusa",
        "koala-medusa",
        ("KOALA on Medusa", "Zhang et al. 2024 (arXiv 2408.08146)", "Medusa's heads, two blocks, adversarial", ""),
        TREE_OF_4,
        shapes=BY_LEVEL,
    ),
    head_row(
        "falcon",
        "falcon",
        (
            "Falcon",
            "Gao et al. 2024 (arXiv 2412.12639)",
            "semi-autoregressive head, k tokens a call, tree",
            "2.91-3.51x",
        ),
        TREE_OF_6,
        shapes=BY_LEVEL,
    ),
    head_row(
        "forerunner",
        "forerunner",
        (
            "Forerunner",
            "foredraft's own",
            "a block a pass through the target's keys and values, corrected by token, copies, tree",
            "",
        ),
        TREE_OF_8,
        shapes=BY_LEVEL,
    ),
    head_row(
        "sdsat",
        "sdsat",
        ("SDSAT", "Liu et al. 2024 (arXiv 2403.18647)", "the target drafts through placeholders, tree", "3.0-3.5x"),
        Options(shape="eagle2:nodes=16,width=4", draft_length=4),
        shapes=BY_LEVEL,
    ),
    head_row(
        "s2d",
        "s2d",
        ("S2D", "Kavehzadeh et al. 2024 (arXiv 2407.01955)", "nested drafter, exits by confidence and cost", "1.55x"),
        CHAIN_OF_5,
        parts.s2d,
        shapes=("chain",),
    ),
)

DRAFT_AND_VERIFY = Recipe(
    "draft-and-verify",
    Card(
        "Draft & Verify",
        "Zhang et al. 2024 (arXiv 2309.08168)",
        "the target itself without some halves of its layers, adaptive confidence stop",
        "1.73x, LLaMA-2 13B",
        "none needed; foredraft train draft-and-verify --prompts FILE searches what to leave out",
        phrase="the target without some halves of layers",
        get="foredraft train draft-and-verify --target MODEL --prompts FILE",
    ),
    parts.head("draft-and-verify"),
    shapes=SHAPE_NAMES,
    takes_drafter=True,
    takes_stop=True,
    defaults=Options(shape="chain", draft_length=8, stop="adaptive"),
)
