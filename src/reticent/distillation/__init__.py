"""Distillation: public texts labelled or continued by a run's worlds, and a student trained on them to be published."""
