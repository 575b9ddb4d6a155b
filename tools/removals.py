"""Makes removals from a source's syntax tree: each is one small change that a test of the source should notice.

A removal takes away a statement, an operand of `and`, `or`, `min` or `max`, a `not`, a lock or an order of memory; puts
a condition to true or false; moves a comparison by its border; changes a constant; or has a handler catch nothing. C++
and Python are read by tree-sitter, so that one walk serves both. What a stronger removal of the same place implies is
left out: the condition of `if (a && b)` is not put to true, because leaving out `a` or `b` is harder to notice.
"""

from __future__ import annotations

import dataclasses
import re

import tree_sitter
import tree_sitter_cpp
import tree_sitter_python

PARSERS = {
    suffix: tree_sitter.Parser(tree_sitter.Language(module.language()))
    for module, suffixes in ((tree_sitter_cpp, (".cpp", ".hpp")), (tree_sitter_python, (".py",)))
    for suffix in suffixes
}
Node = tree_sitter.Node

STATEMENTS = {"throw_statement", "raise_statement", "break_statement", "continue_statement", "delete_statement"}
STATEMENTS |= {"assert_statement"}
CALLS = {"call_expression", "call", "await", "update_expression", "delete_expression", "co_await_expression"}
ASSIGNMENTS = {"assignment_expression", "assignment", "augmented_assignment"}
CHOICES = {"if_statement", "elif_clause", "conditional_expression", "if_clause"}
LOOPS = {"while_statement", "for_statement", "do_statement"}
JUMPS = {"return_statement", "throw_statement", "raise_statement", "break_statement", "continue_statement"}
NUMBERS = {"number_literal", "integer", "float"}
BORDERS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
OPPOSITES = {"==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in"}
TRUTHS = {"true": "false", "false": "true", "True": "False", "False": "True", "TRUE": "FALSE", "FALSE": "TRUE"}
LOCK = re.compile(r"\b(lock_guard|scoped_lock|unique_lock|shared_lock|Lock)\b|gil_scoped")
ORDER = re.compile(r"memory_order(_|::)(?!relaxed)\w+")
SPEED = re.compile(r"\.(reserve|shrink_to_fit)\([^;]*$")
# What these hold is not run, or only names a type or a text.
CLOSED = {"template_argument_list", "template_parameter_list", "static_assert_declaration", "type", "string", "comment"}
CLOSED |= {
    "enumerator_list",
    "array_declarator",
    "bitfield_clause",
    "attribute_declaration",
    "decorator",
    "sizeof_expression",
}
CLOSED |= {"string_literal", "raw_string_literal", "preproc_def", "preproc_function_def", "preproc_if", "preproc_call"}
FUNCTIONS = {
    "function_definition",
    "lambda_expression",
    "lambda",
    "class_definition",
    "class_specifier",
    "struct_specifier",
}


@dataclasses.dataclass(frozen=True)
class Removal:
    start: int  # of the bytes that are replaced
    end: int
    replacement: str
    kind: str  # statement, condition, operand, border, opposite, constant, handler, lock or order


def text_of(node: Node) -> str:
    return node.text.decode()


def operator_of(node: Node) -> str:
    """Of a comparison or a logical expression with two sides, "" if it has more."""
    operators = [child.type for child in node.children if not child.is_named]
    return operators[0] if len(operators) == 1 else ""


def is_logical(node: Node, operators: tuple[str, ...] = ("&&", "and", "||", "or")) -> bool:
    return node.type in {"binary_expression", "boolean_operator"} and operator_of(node) in operators


def bare(node: Node) -> Node:
    while node.type == "parenthesized_expression" and node.named_child_count == 1:
        node = node.named_children[0]
    return node


def condition_of(node: Node) -> Node | None:
    """What is asked in an if, a while or a conditional expression, unless it declares something."""
    if node.type == "conditional_expression" and not node.child_by_field_name("condition"):
        return node.named_children[1]  # Python
    if node.type == "if_clause":
        return node.named_children[0]
    asked = node.child_by_field_name("condition")
    if asked and asked.type == "condition_clause":
        asked = asked.child_by_field_name("value")
    return bare(asked) if asked and asked.type != "declaration" else None


def only_jumps(node: Node) -> bool:
    """True if an if without an else does nothing but leave."""
    then = node.child_by_field_name("consequence")
    if node.type not in {"if_statement", "elif_clause"} or node.child_by_field_name("alternative"):
        return False
    if then.type in {"compound_statement", "block"} and then.named_child_count == 1:
        then = then.named_children[0]
    return then.type in JUMPS


def stands_alone(node: Node) -> bool:
    """False if removing the condition around the statement, or leaving it where it is, comes to the same."""
    block = node.parent
    if block.type in {"compound_statement", "block"}:
        if block.named_child_count > 1:
            return True
        block = block.parent
    return not (block.type in {"if_statement", "elif_clause"} and only_jumps(block))


class Walk:
    def __init__(self, source: bytes, suffix: str):
        self.source = source
        self.python = suffix == ".py"
        self.root = PARSERS[suffix].parse(source).root_node
        self.found: list[Removal] = []

    def put(self, node: Node, replacement: str, kind: str) -> None:
        self.found.append(Removal(node.start_byte, node.end_byte, replacement, kind))

    def walk(self, node: Node, asked: bool = False) -> None:
        """`asked`: the truth of the expression is put to true and false already."""
        if node.type in CLOSED or (self.python and text_of(node).startswith("if TYPE_CHECKING")):
            return
        if node.type == "return_statement" or node.type in STATEMENTS | {"expression_statement", "declaration"}:
            self.statement(node)
        if node.type in CHOICES | LOOPS:
            self.condition(node)
        self.expression(node, asked)
        condition = condition_of(node) if node.type in CHOICES | LOOPS else None
        for child in node.children:
            logical = is_logical(node) or (asked and child.type == "parenthesized_expression")
            inside = condition and child.start_byte <= condition.start_byte and condition.end_byte <= child.end_byte
            passed = asked and node.type in {"parenthesized_expression", "condition_clause"}
            self.walk(child, bool(logical or inside or passed))

    def statement(self, node: Node) -> None:
        nothing = "pass" if self.python else ";"
        if node.type == "declaration":
            if LOCK.search(text_of(node)) and self.named_once(node):
                self.put(node, nothing, "lock")
        elif node.type == "return_statement":
            last = node.parent.named_children[-1] == node and node.parent.parent.type in FUNCTIONS
            if not node.named_children and not last and stands_alone(node):
                self.put(node, nothing, "statement")
        elif node.type in STATEMENTS:
            if stands_alone(node):
                self.put(node, nothing, "statement")
        elif node.named_children and self.can_be_missed(node.named_children[0]):
            self.put(node, nothing, "statement")

    def named_once(self, declaration: Node) -> bool:
        """True if nothing but the declaration names the variable, which then only lives."""
        declarator = declaration.child_by_field_name("declarator")
        while declarator and declarator.type != "identifier":
            declarator = declarator.child_by_field_name("declarator")
        if not declarator:
            return False
        return len(re.findall(rf"\b{re.escape(text_of(declarator))}\b", text_of(declaration.parent))) == 1

    def can_be_missed(self, done: Node) -> bool:
        """Of a call or an assignment: something else than speed needs it."""
        if done.type in ASSIGNMENTS and self.python:
            return self.declares_nothing(done)
        return done.type in CALLS | ASSIGNMENTS and not SPEED.search(text_of(done))

    def declares_nothing(self, assignment: Node) -> bool:
        """In Python, the first assignment to a name declares it."""
        if assignment.type == "augmented_assignment":
            return True
        if not assignment.child_by_field_name("right"):
            return False
        target = assignment.child_by_field_name("left")
        if target.type in {"attribute", "subscript"}:
            return True
        function = assignment.parent
        while function and function.type != "function_definition":
            function = function.parent
        if not function or target.type != "identifier":
            return False
        before = self.source[function.start_byte : assignment.start_byte].decode()
        return re.search(rf"\b{re.escape(text_of(target))}\b", before) is not None

    def condition(self, node: Node) -> None:
        condition = condition_of(node)
        constant = any(child.type == "constexpr" for child in node.children)
        if not condition or constant or text_of(condition) in TRUTHS:
            return
        false, true = ("False", "True") if self.python else ("false", "true")
        if not is_logical(condition, ("||", "or")):
            self.put(condition, false, "condition")
        if node.type in CHOICES and not only_jumps(node) and not is_logical(condition, ("&&", "and")):
            self.put(condition, true, "condition")

    def expression(self, node: Node, asked: bool) -> None:
        if is_logical(node):
            self.logical(node)
        elif node.type in {"binary_expression", "comparison_operator"}:
            self.comparison(node, asked)
        elif node.type in {"unary_expression", "not_operator"} and not asked:
            if node.children[0].type in {"!", "not"}:
                self.put(node, text_of(node.child_by_field_name("argument")), "opposite")
        elif node.type in NUMBERS:
            if node.parent.type != "case_statement" and not self.in_border(node):
                self.put(node, f"({text_of(node)} + 1)", "constant")
        elif text_of(node) in TRUTHS:
            if not asked:
                self.put(node, TRUTHS[text_of(node)], "constant")
        elif node.type in {"call_expression", "call"}:
            self.bound(node)
        elif node.type in {"catch_clause", "except_clause"}:
            self.handler(node)
        elif node.type == "with_clause" and not any(
            item.named_children[0].type == "as_pattern" for item in node.named_children
        ):
            keyword = node.parent.children[node.parent.children.index(node) - 1]
            self.found.append(Removal(keyword.start_byte, node.end_byte, "if True", "lock"))
        elif (
            node.type == "qualified_identifier"
            and ORDER.search(text_of(node))
            and node.parent.type != "qualified_identifier"
        ):
            self.put(node, "std::memory_order_relaxed", "order")

    def logical(self, node: Node) -> None:
        left, right = node.child_by_field_name("left"), node.child_by_field_name("right")
        self.put(node, text_of(left), "operand")
        if not (is_logical(left) and operator_of(left) == operator_of(node)):  # otherwise its own operands go
            self.put(node, text_of(right), "operand")

    def comparison(self, node: Node, asked: bool) -> None:
        operators = [child for child in node.children if not child.is_named]
        if len(operators) == 1 and (other := BORDERS.get(operators[0].type)):
            self.put(operators[0], other, "border")
        elif len(operators) == 1 and not asked and (other := OPPOSITES.get(operators[0].type)):
            self.put(operators[0], other, "opposite")

    def in_border(self, number: Node) -> bool:
        """True if moving the comparison by its border is the same as changing the number."""
        return (
            number.parent.type in {"binary_expression", "comparison_operator"} and operator_of(number.parent) in BORDERS
        )

    def handler(self, clause: Node) -> None:
        """What it catches is something that nobody throws."""
        if self.python:
            if caught := clause.child_by_field_name("value"):
                self.put(
                    caught.named_children[0] if caught.type == "as_pattern" else caught, "ZeroDivisionError", "handler"
                )
        else:
            parameters = clause.child_by_field_name("parameters")
            if not re.search(r"\w+\)$", text_of(parameters)):  # it has no name that the handler may use
                self.put(parameters, "(const int&)", "handler")

    def bound(self, call: Node) -> None:
        name = re.sub(r"<.*>$", "", text_of(call.child_by_field_name("function")))
        arguments = [child for child in call.child_by_field_name("arguments").named_children if child.type != "comment"]
        if name in {"std::min", "std::max", "min", "max"} and len(arguments) == 2:
            for argument in arguments:
                self.put(call, f"({text_of(argument)})", "operand")


def removals(source: bytes, suffix: str) -> list[Removal]:
    """All removals of a source, in its order."""
    walk = Walk(source, suffix)
    walk.walk(walk.root)
    return sorted(set(walk.found), key=lambda removal: (removal.start, removal.end, removal.replacement))
