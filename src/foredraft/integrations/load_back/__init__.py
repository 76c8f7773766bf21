"""Exported heads in the engines that they were exported for: are they accepted there as they are here?"""
