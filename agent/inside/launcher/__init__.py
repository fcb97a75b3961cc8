"""The launcher, parent of one task's attempts: its loop, its link to the agent, its ports, its deadline."""
