"""Prompts of three kinds for the shift of topic: conversation, code, and another language. All are written here, as
sentences times subjects times endings, so that there are thousands, none comes twice, and no file is needed."""

from __future__ import annotations

from itertools import product
from random import Random

CHAT = (
    "Why do people like {}?", "Give me three facts about {}.", "Tell me a short story about {}.",
    "What should a beginner know about {}?", "Write a short poem about {}.", "Explain {} to a child.",
    "What is the history of {}?", "How could {} change in the next fifty years?", "Plan a weekend around {}.",
    "What are the advantages and disadvantages of {}?", "Write a letter to a friend about {}.",
    "Describe {} in one paragraph.", "What questions would an expert ask about {}?", "Give advice on {}.",
    "How do cities deal with {}?", "Compare {} today with {} a hundred years ago.",
)  # fmt: skip
SUBJECTS = (
    "gardens", "trains", "the sea", "winter", "bread", "music", "bees", "old maps", "rain", "libraries", "football",
    "tea", "mountains", "dreams", "paper", "night trains", "cats", "chess", "bridges", "honey", "sleep", "rivers",
    "bicycles", "markets", "the moon", "salt", "letters", "theatre", "forests", "clocks", "swimming", "painting",
    "islands", "wool", "volcanoes", "radio", "olives", "kites", "glass", "lighthouses", "apples", "dance",
)  # fmt: skip
CODE = (
    "Write a Python function that {}.", "Write a Python function with type hints that {}, and a test for it.",
    "Write a JavaScript function that {}.", "Show Python code that {} without any library.",
    "Write a class in Python with a method that {}.", "Write a C function that {}.",
    "Write a Java method that {}.", "Write a generator in Python that {}.", "Write a Go function that {}.",
    "Write a recursive function in Python that {}.", "Write a Rust function that {}.",
    "Write a command line script in Python that {}.",
)  # fmt: skip
TASKS = (
    "sorts a list of numbers", "reverses a string", "counts the words of a text", "finds the largest value",
    "removes duplicates from a list", "merges two sorted lists", "computes the factorial of n", "checks for primes",
    "reads a CSV file", "groups a list of dictionaries by a key", "flattens a nested list", "searches a sorted list",
    "computes the greatest common divisor", "converts Celsius to Fahrenheit", "validates an email address",
    "parses a date", "counts the vowels of a string", "transposes a matrix", "multiplies two matrices",
    "prints the Fibonacci numbers up to n", "checks whether a string is a palindrome", "adds two linked lists",
    "walks through a binary tree", "finds all permutations of a list", "rotates a list by k places",
    "writes a dictionary to a JSON file", "computes the mean and the variance", "splits a list into chunks",
    "finds the shortest path in a graph", "keeps the k largest values of a stream", "caches results by key",
    "removes white space from a text", "converts a number to binary", "sums the digits of a number",
    "compares two versions like 1.10.2", "rounds prices to two digits", "retries a call three times",
    "encodes a string by run lengths", "finds the longest common prefix", "shuffles a list", "counts inversions",
    "computes powers of two",
)  # fmt: skip
SPANISH = (
    "¿Qué es {}? Responde en español.", "Escribe un cuento corto en español sobre {}.",
    "Escribe en español tres frases sobre {}.", "Explica en español la historia de {}.",
    "Escribe una carta en español a un amigo sobre {}.", "Describe {} en español.",
    "Escribe un poema en español sobre {}.", "¿Por qué es importante {}? Responde en español.",
    "Da consejos en español sobre {}.", "Escribe un diálogo en español sobre {}.",
    "¿Cómo será {} en el futuro? Responde en español.", "Haz una lista en español de ideas sobre {}.",
)  # fmt: skip
TEMAS = (
    "el mar", "la montaña", "el pan", "la música", "el invierno", "los trenes", "la lluvia", "el fútbol", "la luna",
    "el café", "los libros", "la ciudad", "el bosque", "los gatos", "el teatro", "la familia", "el trabajo",
    "la escuela", "el río", "los puentes", "el mercado", "la cocina", "el sueño", "las cartas", "el reloj", "la sal",
    "las abejas", "el jardín", "la danza", "el cine", "los mapas", "la playa", "el queso", "la noche", "el verano",
    "los idiomas", "la amistad", "el aceite de oliva", "la bicicleta", "el volcán", "las islas", "la radio",
)  # fmt: skip
ENDINGS = ("", " Use simple words.", " Begin with an example.", " Be friendly.")
NOTES = ("", " Add comments.", " Empty input must work.", " Explain it briefly.", " Show how it is called.")
FINALES = ("", " Usa palabras sencillas.", " Empieza con un ejemplo.", " Sé amable.", " Sé breve.")
TOPICS = {
    "chat": (CHAT, SUBJECTS, ENDINGS),
    "code": (CODE, TASKS, NOTES),
    "spanish": (SPANISH, TEMAS, FINALES),
}


def prompts(topic: str, count: int, seed: int = 0) -> list[str]:
    """So many prompts of a topic in random order; they come again when all (2,520 or more) were there."""
    parts = product(*TOPICS[topic])
    found = [sentence.format(*[subject] * 2) + ending for sentence, subject, ending in parts]
    Random(f"{topic}/{seed}").shuffle(found)
    return [found[i % len(found)] for i in range(count)]
