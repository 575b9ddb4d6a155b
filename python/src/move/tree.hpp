#pragma once

#include "frameworks.hpp"

#include <nanobind/nanobind.h>

#include <cstdint>
#include <functional>
#include <string>
#include <unordered_map>
#include <vector>

namespace penstock::python {

/// A nest of containers and arrays, taken apart: its arrays as leaves, in the order in which they were met,
/// and a plan for building the same nest around other arrays.
///
/// Numbers, strings and None stay as they are. An object whose exact type C++ does not know goes to
/// `expand(object)`, which answers one of
///   (children, build)           `build(children')` makes the new object of the children's replacement
///   (contents, begin, finish)   a container. If nothing in it moves, it stays the same object. Otherwise
///                               `begin(moved)` makes an empty one, or None if it cannot, and
///                               `finish(contents', moved)` fills it. `moved` is a dict of the tree's own.
///                               A container that is met again, also in itself, is one object afterwards.
///   (object, None)              take this object as it is
///   str                         a sentence that says why the object cannot be sent: TypeError, with the
///                               place in the nest
class Tree {
 public:
  /// What to do with an array that was read: make it a leaf, leave it as it is, or pass it to `expand`.
  enum class Choice : std::uint8_t { leaf, leave, expand };
  using Wanted = std::function<Choice(const Leaf&)>;

  Tree(nb::handle root, nb::handle expand, const Wanted& wanted);

  [[nodiscard]] std::vector<Leaf>& leaves() noexcept { return leaves_; }
  /// True if `expand` was asked: it may have moved objects.
  [[nodiscard]] bool has_expanded() const noexcept { return has_expanded_; }
  /// The containers, with their keys, and the shapes, dtypes and strides of the leaves, as a text: two nests
  /// with the same text have the same places for their arrays. To be called before build.
  [[nodiscard]] std::string describe() const;
  /// The nest around `results`, one for each leaf. Callable once.
  [[nodiscard]] nb::object build(std::vector<nb::object>& results);

  struct Place {
    nb::object object;
    std::string name;
  };
  /// What another nest has in the places of the leaves. `expand` takes its objects apart, and returns arrays
  /// as they are. Throws InvalidArgument, with the place in `name`, if the other nest has another structure,
  /// or an array that is in no leaf's place. To be called before build.
  [[nodiscard]] std::vector<Place> match(nb::handle other, nb::handle expand, const std::string& name);

 private:
  enum class Kind : std::uint8_t { value, leaf, dict, list, tuple, call, container, again };
  struct Node {
    Kind kind;
    nb::object object;        ///< the value; a copy of the dict; the function to call
    Py_ssize_t children = 0;  ///< of a container, or of one that is met again: its place in `containers_`
    bool moved = false;       ///< of a value: `expand` has put it there in place of another
  };
  struct Container {
    nb::object original;
    nb::object begin;
    nb::object finish;
    std::size_t end = 0;  ///< the node after its contents
    bool changes = false;
    nb::object made{};  ///< invalid or None: not yet
  };
  struct Step {
    PyObject* key;  ///< borrowed; null: `index` counts
    Py_ssize_t index;
  };

  void take(PyObject* object, bool expanded);
  void expect(Py_ssize_t children);
  void take_dict(PyObject* dict);
  template <typename GetItem>
  void take_items(PyObject* sequence, Kind kind, Py_ssize_t count, const GetItem& item);
  void take_other(PyObject* object, bool expanded);
  [[nodiscard]] nb::object ask(PyObject* object, bool expanded);
  void take_container(PyObject* object, const nb::object& answer);
  [[nodiscard]] bool take_array(PyObject* object);
  [[nodiscard]] std::string place() const;
  void match_next(nb::object other, std::vector<Place>& places);
  void match_dict(const Node& node, PyObject* other, std::vector<Place>& places);
  void describe_next(std::string& text, std::size_t& node, std::size_t& leaf) const;
  void find_changes();
  [[nodiscard]] bool changes_next(std::size_t& node, bool& is_news);
  [[nodiscard]] nb::object build_next(std::vector<nb::object>& results);
  [[nodiscard]] nb::object build_items(nb::object made, Py_ssize_t count,
                                       int (*set)(PyObject*, Py_ssize_t, PyObject*),
                                       std::vector<nb::object>& results);
  [[nodiscard]] nb::object build_container(Container& container, std::vector<nb::object>& results);

  nb::handle expand_;
  const Wanted* wanted_;
  std::string name_ = "batch";
  std::vector<Step> path_;
  std::vector<Node> nodes_;
  std::vector<Leaf> leaves_;
  std::vector<Container> containers_;
  std::unordered_map<PyObject*, std::size_t> places_of_containers_;
  nb::object moved_;
  bool has_expanded_ = false;
  std::size_t next_node_ = 0;
  std::size_t next_leaf_ = 0;
};

}  // namespace penstock::python
