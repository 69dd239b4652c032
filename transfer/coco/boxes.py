"""Boxes against images and masks: left, top, width and height in pixels."""

Box = tuple[float, float, float, float]
SLACK = 1.0  # pixels by which exporters round a box beyond its image
FAR, OVERLAP = 3.0, 0.8  # a box and the one around its mask differ by more pixels than this, and overlap (IoU) less


def corners(box: Box) -> Box:
    """Left, top, right, bottom."""
    return box[0], box[1], box[0] + box[2], box[1] + box[3]


def clipped(box: Box, size: tuple[int, int]) -> Box:
    """The part inside an image of this width and height; without an area if there is none."""
    left, top, right, bottom = corners(box)
    if left >= 0 and top >= 0 and right <= size[0] and bottom <= size[1]:
        return box  # nearly all, of a million boxes
    left, right = min(max(left, 0.0), float(size[0])), min(max(right, 0.0), float(size[0]))
    top, bottom = min(max(top, 0.0), float(size[1])), min(max(bottom, 0.0), float(size[1]))
    return left, top, right - left, bottom - top


def is_flat(box: Box, size: tuple[int, int]) -> bool:
    """Whether it has no area in the image."""
    inside = clipped(box, size)
    return box[2] <= 0 or box[3] <= 0 or inside[2] <= 0 or inside[3] <= 0


def is_beyond(box: Box, size: tuple[int, int]) -> bool:
    """Whether it leaves the image by more than rounding does."""
    left, top, right, bottom = corners(box)
    return min(left, top) < -SLACK or right > size[0] + SLACK or bottom > size[1] + SLACK


def disagree(box: Box, around: Box) -> bool:
    """Whether a box is not that around its mask: both many pixels and a large part of it lie elsewhere."""
    first, second = corners(box), corners(around)
    if max(abs(one - other) for one, other in zip(first, second, strict=True)) <= FAR:
        return False
    width = min(first[2], second[2]) - max(first[0], second[0])
    height = min(first[3], second[3]) - max(first[1], second[1])
    shared = max(width, 0.0) * max(height, 0.0)
    return shared < OVERLAP * (box[2] * box[3] + around[2] * around[3] - shared)
