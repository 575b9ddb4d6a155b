import argparse
import pathlib
import subprocess
import sys
import tempfile
import unittest
from unittest import mock

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import kept_removals  # noqa: E402
import mutant  # noqa: E402
import mutants  # noqa: E402
import removals  # noqa: E402


def made(source: str, suffix: str) -> list[str]:
    """What is removed, and what stands there instead."""
    found = removals.removals(source.encode(), suffix)
    return [f"{source[r.start : r.end]} -> {r.replacement}" for r in found]


class FromCpp(unittest.TestCase):
    def check(self, body: str, *expected: str) -> None:
        self.assertEqual(sorted(made(f"void f() {{ {body} }}", ".cpp")), sorted(expected))

    def test_statements_go(self):
        self.check("g(); x = y; ++n; const int z = h();", "g(); -> ;", "x = y; -> ;", "++n; -> ;")
        self.check("for (;;) { g(); break; }", "g(); -> ;", "break; -> ;")
        self.check("names.reserve(m);")

    def test_a_lock_goes_if_only_its_life_counts(self):
        self.check("const std::lock_guard lock(mutex_);", "const std::lock_guard lock(mutex_); -> ;")
        self.check("std::unique_lock lock(mutex_); use(lock);", "use(lock); -> ;")

    def test_an_if_that_leaves_is_only_left_out(self):
        self.check("if (a) throw E();", "a -> false")
        self.check("if (a) { return; } g();", "a -> false", "g(); -> ;")

    def test_other_conditions_are_put_to_both(self):
        self.check("if (a) g();", "a -> false", "a -> true", "g(); -> ;")
        self.check("if (a) return; else g();", "a -> false", "a -> true", "return; -> ;", "g(); -> ;")
        self.check("k = a ? b : c;", "k = a ? b : c; -> ;", "a -> false", "a -> true")
        self.check("while (a) g();", "a -> false", "g(); -> ;")
        self.check("while (true) g();", "g(); -> ;")
        self.check("if constexpr (a) g();", "g(); -> ;")
        self.check("if (const auto a = h()) g();", "g(); -> ;")

    def test_operands_go_where_the_whole_would_be_noticed_sooner(self):
        self.check("if (a && !b) g();", "a && !b -> false", "a && !b -> a", "a && !b -> !b", "g(); -> ;")
        self.check("if (a || b) return;", "a || b -> a", "a || b -> b")
        self.check("return a && b && c;", "a && b && c -> a && b", "a && b -> a", "a && b -> b")

    def test_bounds_lose_an_operand(self):
        self.check("return std::min<int>(a, b);", "std::min<int>(a, b) -> (a)", "std::min<int>(a, b) -> (b)")

    def test_comparisons_move_by_their_border(self):
        self.check("return a < 3;", "< -> <=")
        self.check("return a == b;", "== -> !=")
        self.check("if (a != b) return;", "a != b -> false")
        self.check("return !a;", "!a -> a")

    def test_constants_change(self):
        self.check("return g(8, true);", "8 -> (8 + 1)", "true -> false")
        self.check("std::array<int, 8> a; switch (k) { case 3: break; }", "break; -> ;")

    def test_a_handler_catches_nothing(self):
        self.check("try { g(); } catch (...) { throw; }", "g(); -> ;", "throw; -> ;", "(...) -> (const int&)")
        self.check("try { g(); } catch (const E&) { }", "g(); -> ;", "(const E&) -> (const int&)")
        self.check("try { g(); } catch (const E& e) { h(e); }", "g(); -> ;", "h(e); -> ;")

    def test_an_order_of_memory_is_relaxed(self):
        order = "std::memory_order_release -> std::memory_order_relaxed"
        self.check("a.store(b, std::memory_order_release);", "a.store(b, std::memory_order_release); -> ;", order)
        self.check("return a.load(std::memory_order_relaxed);")

    def test_nothing_is_removed_outside_of_code(self):
        self.assertEqual(
            made("static_assert(sizeof(int) == 4);\nenum class E { a = 1 };\n#if A > 3\n#endif\n", ".hpp"), []
        )


class FromPython(unittest.TestCase):
    def check(self, body: str, *expected: str) -> None:
        source = "def f(self):\n" + "".join(f"    {line}\n" for line in body.split("\n"))
        self.assertEqual(sorted(made(source, ".py")), sorted(expected))

    def test_statements_go_unless_they_declare(self):
        self.check("g()\nself.x = y\nz = h\nz = k", "g() -> pass", "self.x = y -> pass", "z = k -> pass")
        self.check('"""Does it."""\nreturn x')

    def test_conditions(self):
        self.check("if a:\n    raise E", "a -> False")
        self.check("return b if a else c", "a -> False", "a -> True")
        self.check("return [k for k in b if a]", "a -> False", "a -> True")
        self.check("if a and b:\n    return", "a and b -> False", "a and b -> a", "a and b -> b")

    def test_expressions(self):
        self.check("return a <= b", "<= -> <")
        self.check("return a is None", "is -> is not")
        self.check("return not a", "not a -> a")
        self.check("return min(a, 3)", "min(a, 3) -> (a)", "min(a, 3) -> (3)", "3 -> (3 + 1)")

    def test_a_handler_catches_nothing(self):
        self.check("try:\n    g()\nexcept A as e:\n    h()", "g() -> pass", "A -> ZeroDivisionError", "h() -> pass")
        self.check(
            "try:\n    g()\nexcept (A, B):\n    raise", "g() -> pass", "(A, B) -> ZeroDivisionError", "raise -> pass"
        )

    def test_a_context_goes_unless_it_is_named(self):
        self.check("with self.lock:\n    g()", "with self.lock -> if True", "g() -> pass")
        self.check("with h() as a:\n    g()", "g() -> pass")


SOURCE = """namespace p {
class Ring {
  int first() const { return first_; }
};
Slot& Ring::take(int n) {
  wait(n);
  ++taken_;
  return slot(n);
}
void reset() { wait(0); }
}
"""


class Kept(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        root = pathlib.Path(folder.name)
        for file, text in (
            ("src/core/ring.cpp", SOURCE),
            ("python/penstock/a.py", "class A:\n    def f(self):\n        a()\n        b()\n"),
        ):
            (root / file).parent.mkdir(parents=True)
            (root / file).write_text(text)
        for module in (mutant, kept_removals):
            patch = mock.patch.object(module, "ROOT", root)
            patch.start()
            self.addCleanup(patch.stop)
        for cache in (mutant.source_of, mutant.digest_of, mutant.meaning, kept_removals.parts_of):
            cache.cache_clear()
            self.addCleanup(cache.cache_clear)

    def entry(self, **entry: str) -> mutant.Mutant:
        return kept_removals.read_entry("n", entry)

    def test_an_entry_is_found_whatever_the_lines_are(self):
        found = self.entry(function="Ring::take", text="wait(n); ++taken_;", **{"with": "++taken_; wait(n);"})
        self.assertEqual((found.place, found.layer), ("src/core/ring.cpp:6:3", "core"))
        self.assertIn(b"  ++taken_; wait(n);\n  return", found.text)
        self.assertEqual(self.entry(function="Ring::first", text="return first_").place, "src/core/ring.cpp:3:23")

    def test_lines_of_python_keep_their_indent(self):
        found = self.entry(function="A.f", text="a()\nb()", **{"with": "b()\na()"})
        self.assertTrue(found.text.endswith(b"        b()\n        a()\n"))

    def test_what_is_not_found_once_is_refused(self):
        for function, text in (("Ring::take", "n"), ("Ring::take", "gone();"), ("reset", "wait(n)")):
            with self.assertRaisesRegex(mutant.Problem, "times in functions"):
                self.entry(function=function, text=text)
        with self.assertRaisesRegex(mutant.Problem, "unknown"):
            self.entry(function="reset", text="wait(0);", file="ring.cpp")

    def test_two_that_remove_the_same_have_one_shape(self):
        kept = self.entry(function="Ring::take", text="++taken_;")
        place = SOURCE.index("++taken_;")
        same = mutant.Mutant("src/core/ring.cpp", place, place + 9, b";", "n")
        other = mutant.Mutant("src/core/ring.cpp", place, place + 8, b"--taken_", "n")
        self.assertEqual(kept.shape, same.shape)
        self.assertNotEqual(kept.shape, other.shape)
        self.assertNotEqual(same.key, other.key)


class Chosen(unittest.TestCase):
    """Of a repository with two sources, whose second one has changed since its first commit."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.root = pathlib.Path(folder.name)
        for module in (mutant, mutants):
            patch = mock.patch.object(module, "ROOT", self.root)
            patch.start()
            self.addCleanup(patch.stop)
        for cache in (mutant.source_of, mutant.digest_of, mutant.meaning):
            cache.cache_clear()
            self.addCleanup(cache.cache_clear)
        self.write("src/core/a.cpp", "void f() {\n  g();\n}\n")
        self.write("src/data/b.cpp", "void f() {\n  g();\n  h();\n}\n")
        self.git("init", "-q", "-b", "main")
        self.commit()
        self.write("src/data/b.cpp", "void f() {\n  g();\n  h(1);\n}\n")

    def write(self, name: str, text: str) -> None:
        (self.root / name).parent.mkdir(parents=True, exist_ok=True)
        (self.root / name).write_text(text)

    def git(self, *arguments: str) -> None:
        who = ["-c", "user.name=n", "-c", "user.email=n@example.org"]
        subprocess.run(["git", *who, *arguments], cwd=self.root, check=True, capture_output=True)

    def commit(self) -> None:
        self.git("add", ".")
        self.git("commit", "-q", "-m", "m")

    def chosen(self, kept: list[mutant.Mutant] = [], **given: object) -> list[str]:  # noqa: B006
        options = {"all": False, "since": None, "layer": None, "only": "", "sample": 1} | given
        return [f"{m.place} {m.name}" for m in mutants.choose(kept, argparse.Namespace(**options))]

    def test_changed_lines_are_chosen(self):
        changed = ["src/data/b.cpp:3:3 without `h(1);`", "src/data/b.cpp:3:5 `1` is `(1 + 1)`"]
        self.assertEqual(self.chosen(since="HEAD"), changed)
        self.commit()
        self.assertEqual(self.chosen(since="HEAD"), [])
        self.assertEqual(self.chosen(), changed)  # on main, since the commit before
        self.git("checkout", "-q", "-b", "branch")
        self.write("src/core/new.cpp", "void f() { g(); }\n")
        self.assertEqual(self.chosen(since="HEAD"), ["src/core/new.cpp:1:12 without `g();`"])
        self.commit()
        self.write("src/core/a.cpp", "void f() {\n  g(x);\n}\n")
        self.assertEqual(self.chosen(), ["src/core/a.cpp:2:3 without `g(x);`", "src/core/new.cpp:1:12 without `g();`"])

    def test_all_lines_are_chosen_by_layer_and_description(self):
        self.assertEqual(len(self.chosen(all=True)), 4)
        self.assertEqual(self.chosen(all=True, layer="core"), ["src/core/a.cpp:2:3 without `g();`"])
        self.assertEqual(self.chosen(all=True, only="data.*g"), ["src/data/b.cpp:2:3 without `g();`"])

    def test_what_is_kept_is_not_made_again(self):
        kept = mutant.Mutant("src/core/a.cpp", 13, 17, b"", "g is kept", is_kept=True)
        self.assertEqual(self.chosen([kept], all=True, layer="core"), ["src/core/a.cpp:2:3 g is kept"])

    def test_results_go_on_where_they_stopped(self):
        one, other = (mutant.Mutant("src/core/a.cpp", 13, 17, put, "n") for put in (b"", b"h();"))
        results = mutants.Results(self.root / "results")
        results.add(one, "noticed", "", 2)
        known = mutants.Results(self.root / "results").known
        self.assertEqual({known[one.key]["outcome"], other.key in known}, {"noticed", False})
        self.assertRegex(mutants.table([one, other], known), r"\ncore +2 +1 +0 +0 +0 +0 +2\.0$")


if __name__ == "__main__":
    unittest.main()
