"""Which block and pooling of a backbone serves best: the choice on held-out images, and its figure on the test's."""
