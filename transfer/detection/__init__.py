"""Object detection and segmentation on COCO-format sets: Mask R-CNN on a ResNet, with Detectron2 or torchvision."""
