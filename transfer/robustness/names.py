"""Corruptions by name and group, and AlexNet's published errors under them; importing it loads nothing."""

from collections.abc import Sequence

from excb.errors import nearest_name, require

# Hendrycks and Dietterich (2019). "extra" are the four that the paper keeps for validation.
GROUPS = {
    "noise": ("gaussian_noise", "shot_noise", "impulse_noise"),
    "blur": ("defocus_blur", "glass_blur", "motion_blur", "zoom_blur"),
    "weather": ("snow", "frost", "fog", "brightness"),
    "digital": ("contrast", "elastic_transform", "pixelate", "jpeg_compression"),
    "extra": ("speckle_noise", "gaussian_blur", "spatter", "saturate"),
}
COMMON = tuple(name for group, names in GROUPS.items() if group != "extra" for name in names)  # the fifteen
ALL = (*COMMON, *GROUPS["extra"])
SEVERITIES = (1, 2, 3, 4, 5)

# Top-1 errors of AlexNet on ImageNet-C, means over the five severities, as the authors' repository has them. The clean
# one is as their paper prints it (Table 1).
ALEXNET_CLEAN = 0.435
ALEXNET_SIDE = 224  # of the images, in pixels
ALEXNET = dict(
    zip(
        COMMON,
        (
            *(0.886428, 0.894468, 0.922640),
            *(0.819880, 0.826268, 0.785948, 0.798360),
            *(0.866816, 0.826572, 0.819324, 0.564592),
            *(0.853204, 0.646056, 0.717840, 0.606500),
        ),
        strict=True,
    )
)


def corruptions_named(words: Sequence[str]) -> tuple[str, ...]:
    """The corruptions that words name, in the order of `ALL`.

    Args:
        words: names of corruptions or groups, "common", "all", or "none" alone.

    Raises:
        UserError: a word names nothing.
    """
    known = {"common": COMMON, "all": ALL, "none": ()} | GROUPS | {name: (name,) for name in ALL}
    for word in words:
        close = nearest_name(word, known)
        require(word in known, f"--corruptions {word}{close}: there are {', '.join(known)}")
    require("none" not in words or len(words) == 1, "--corruptions none stands alone")
    wanted = {name for word in words for name in known[word]}
    return tuple(name for name in ALL if name in wanted)
