"""Word problems of 3 to 8 steps, each result the first operand of the next step.

    Anna has 4 boxes of 8 clips. She gives away 7. Then she doubles them. ...
    The boxes hold 4 * 8 = 32 clips. Giving away 7 leaves 32 - 7 = 25 clips. ...

The verifier recomputes the story: any wording is fine as long as the equations are the story's,
in its order, all true, and the final answer is the last result.
"""

import random
import re

from lsp.tiny.tasks.problem import MAX_NUMBER, Problem, apply

LEVELS = (3, 4, 5, 6, 7, 8)

PRONOUNS = {"Anna": "she", "Mary": "she", "Natalia": "she", "Sara": "she"}
PRONOUNS |= {"Ben": "he", "John": "he", "Leo": "he", "Tom": "he"}
ITEMS = ("apples", "books", "cards", "clips", "coins", "pens", "shells", "stamps")

# operator, what the story says, what the answer says before the equation
PHRASES = {
    "+": [("buys {n} more", "Buying {n} gives"), ("finds {n} {items}", "Finding {n} gives")],
    "-": [("gives away {n}", "Giving away {n} leaves"), ("loses {n} {items}", "Losing {n} leaves")],
    "*2": [("doubles them", "Doubling gives")],
    "*3": [("triples them", "Tripling gives")],
    "/2": [("sells half of them", "Selling half leaves")],
}

Step = tuple[str, int]


def propose(rng: random.Random, level: int, template: int = 0) -> Problem:
    name, items = rng.choice(sorted(PRONOUNS)), rng.choice(ITEMS)
    pronoun = PRONOUNS[name]
    story, answer, steps = [], [], list[Step]()
    if rng.random() < 0.3:
        boxes, each = rng.randint(2, 6), rng.randint(2, 8)
        value = boxes * each
        story.append(f"{name} has {boxes} boxes of {each} {items}.")
        answer.append(f"The boxes hold {boxes} * {each} = {value} {items}.")
        start, steps = boxes, [("*", each)]
    else:
        start = value = rng.randint(2, 20)
        story.append(f"{name} has {value} {items}.")
    while len(steps) < level:
        kind, operand = _next_step(rng, value)
        said, written = rng.choice(PHRASES[kind])
        opening = f"Then {pronoun}" if rng.random() < 0.3 else pronoun.capitalize()
        result = apply(kind[0], value, operand)
        assert result is not None
        story.append(f"{opening} {said.format(n=operand, items=items)}.")
        lead = written.format(n=operand)
        answer.append(f"{lead} {value} {kind[0]} {operand} = {result} {items}.")
        steps.append((kind[0], operand))
        value = result
    question = f"How many {items} does {name} have now?"
    prompt = " ".join([question, *story] if template else [*story, question]) + "\n"
    answer.append(f"The final answer is {value}.")
    skeleton = f"{start} " + " ".join(f"{operator}{operand}" for operator, operand in steps)
    facts = {"start": start, "steps": steps}
    return Problem("arithmetic", level, prompt, " ".join(answer), skeleton, facts)


def _next_step(rng: random.Random, value: int) -> tuple[str, int]:
    """A kind of PHRASES and its operand that keep the value between 1 and MAX_NUMBER."""
    while True:
        kind = rng.choices(("+", "-", "*2", "*3", "/2"), (30, 30, 15, 10, 15))[0]
        operand = rng.randint(2, 12) if len(kind) == 1 else int(kind[1])
        result = apply(kind[0], value, operand)
        if result is not None and 1 <= result <= MAX_NUMBER:
            return kind, operand


EQUATION = re.compile(r"([^=]*?)(\d+) ([-+*/]) (\d+) = (\d+)( [a-z]+)?")


def verify(problem: Problem, text: str) -> bool:
    """Whether every sentence of `text` is the story's next step, true, and the last the result."""
    *sentences, last = text.removesuffix(".").split(". ")
    value, steps = problem.facts["start"], problem.facts["steps"]
    if len(sentences) != len(steps):
        return False
    for sentence, (operator, operand) in zip(sentences, steps, strict=True):
        match = EQUATION.fullmatch(sentence)
        if not match:
            return False
        lead, left, sign, right, result = match.groups()[:5]
        operands = {(value, operand)} | ({(operand, value)} if operator in "+*" else set())
        if sign != operator or (int(left), int(right)) not in operands:
            return False
        if any(int(n) != operand for n in re.findall(r"\d+", lead)):
            return False
        value = apply(operator, value, operand)
        if int(result) != value:
            return False
    return last == f"The final answer is {value}" and text.endswith(".")
