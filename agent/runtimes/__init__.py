"""How launchers come to life: behind the `Runtime` boundary."""
