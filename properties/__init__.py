"""What must hold, and the engines that try to break it."""
