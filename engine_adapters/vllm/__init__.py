"""Headrace inside vLLM: the receive side as a weight transfer engine."""
