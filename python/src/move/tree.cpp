#include "move/tree.hpp"

#include "arrays.hpp"
#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>

#include <nanobind/stl/string.h>

#include <algorithm>
#include <utility>

namespace penstock::python {
namespace {

// Raises Python's RecursionError for nests that contain themselves.
class RecursionGuard {
 public:
  RecursionGuard() {
    if (Py_EnterRecursiveCall(" while penstock walked a nest of arrays") != 0) throw nb::python_error();
  }
  ~RecursionGuard() { Py_LeaveRecursiveCall(); }
  RecursionGuard(const RecursionGuard&) = delete;
  RecursionGuard& operator=(const RecursionGuard&) = delete;
};

constexpr std::size_t kDeepest = 10000;
constexpr Py_ssize_t kLongestKey = 200;  // in the name of a place

bool is_plain_value(PyObject* object) {
  return object == Py_None || PyUnicode_CheckExact(object) || PyLong_CheckExact(object) ||
         PyFloat_CheckExact(object) || PyBool_Check(object) || PyBytes_CheckExact(object);
}

bool is_array(PyObject* object) {
  Torch* const torch = Torch::get();
  NumPy* const numpy = NumPy::get();
  return (torch != nullptr && torch->is_tensor_exactly(object)) ||
         (numpy != nullptr && numpy->is_array_exactly(object));
}

bool is_plain_key(PyObject* key) {
  if (!PyTuple_CheckExact(key)) return is_plain_value(key);
  for (Py_ssize_t i = 0; i < PyTuple_Size(key); ++i) {
    if (!is_plain_value(PyTuple_GetItem(key, i))) return false;
  }
  return true;
}

/// Calls `visit(key, value)`, both borrowed, for each item.
template <typename Visit>
void for_each_item(PyObject* dict, const Visit& visit) {
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  Py_ssize_t position = 0;
  while (PyDict_Next(dict, &position, &key, &value) != 0) visit(key, value);
}

/// A dict's key as Python writes it, if that is the same in all processes. Otherwise its type: the address of
/// an object is another one in each, and code of the user may fail. After `most` characters it is cut.
std::string name_of_key(PyObject* key, Py_ssize_t most) {
  nb::object text;
  if (is_plain_key(key)) text = nb::steal(PyObject_Repr(key));
  if (!text.is_valid()) {
    PyErr_Clear();  // an int may have too many digits
    text = nb::inst_name(key);
  }
  if (PyUnicode_GetLength(text.ptr()) <= most) return nb::cast<std::string>(text);
  return nb::cast<std::string>(nb::steal(PyUnicode_Substring(text.ptr(), 0, most))) + "...";
}

/// "float32 [3, 4]", with the strides if the elements do not lie in the order of the axes.
std::string form_of(const Leaf& leaf) {
  const auto list = [&](const std::int64_t* numbers) {
    std::string text;
    for (std::int32_t axis = 0; axis < leaf.ndim(); ++axis) {
      text += (axis > 0 ? ", " : "") + std::to_string(numbers[axis]);
    }
    return "[" + text + "]";
  };
  bool in_order = true;
  std::int64_t elements = 1;
  for (std::int32_t axis = leaf.ndim(); axis-- > 0;) {
    in_order = in_order && (leaf.shape()[axis] <= 1 || leaf.strides()[axis] == elements);
    elements *= leaf.shape()[axis];
  }
  std::string text = leaf.dtype_name() + " " + list(leaf.shape());
  if (!in_order && leaf.bytes > 0) text += " with strides " + list(leaf.strides());
  return text;
}

}  // namespace

Tree::Tree(nb::handle root, nb::handle expand, const Wanted& wanted) : expand_(expand), wanted_(&wanted) {
  take(root.ptr(), false);
  wanted_ = nullptr;
  find_changes();
}

void Tree::take(PyObject* object, bool expanded) {
  // Python's own limit may be set higher than the C stack allows.
  if (path_.size() > kDeepest) {
    PyErr_SetString(PyExc_RecursionError, "a nest of arrays is more than 10000 levels deep");
    throw nb::python_error();
  }
  if (is_plain_value(object)) {
    nodes_.push_back({Kind::value, nb::borrow(object)});
  } else if (PyDict_CheckExact(object)) {
    take_dict(object);
  } else if (PyList_CheckExact(object)) {
    take_items(object, Kind::list, PyList_Size(object),
               [](PyObject* list, Py_ssize_t i) { return PyList_GetItem(list, i); });
  } else if (PyTuple_CheckExact(object)) {
    take_items(object, Kind::tuple, PyTuple_Size(object),
               [](PyObject* tuple, Py_ssize_t i) { return PyTuple_GetItem(tuple, i); });
  } else if (!take_array(object)) {
    take_other(object, expanded);
  }
}

void Tree::expect(Py_ssize_t children) {
  const auto make_room = [more = static_cast<std::size_t>(children) + 1](auto& items) {
    const std::size_t needed = items.size() + more;
    if (needed > items.capacity()) items.reserve(std::max(needed, 2 * items.capacity()));
  };
  make_room(nodes_);
  make_room(leaves_);
}

void Tree::take_dict(PyObject* dict) {
  const RecursionGuard guard;
  // A copy, since code that `expand` calls may change the dict. The new values go into the copy.
  PyObject* copy = PyDict_Copy(dict);
  if (copy == nullptr) throw nb::python_error();
  expect(PyDict_Size(copy));
  nodes_.push_back({Kind::dict, nb::steal(copy), PyDict_Size(copy)});
  for_each_item(copy, [&](PyObject* key, PyObject* value) {
    path_.push_back({key, 0});
    take(value, false);
    path_.pop_back();
  });
}

template <typename GetItem>
void Tree::take_items(PyObject* sequence, Kind kind, Py_ssize_t count, const GetItem& item) {
  const RecursionGuard guard;
  expect(count);
  nodes_.push_back({kind, nb::object(), count});
  for (Py_ssize_t i = 0; i < count; ++i) {
    PyObject* child = item(sequence, i);  // borrowed
    if (child == nullptr) throw nb::python_error();
    const nb::object owner = nb::borrow(child);
    path_.push_back({nullptr, i});
    take(child, false);
    path_.pop_back();
  }
}

bool Tree::take_array(PyObject* object) {
  Leaf leaf;
  if (!read_exactly(leaf, object) && !read_array(leaf, object)) return false;
  const Choice choice = (*wanted_)(leaf);
  if (choice == Choice::expand) return false;
  if (choice == Choice::leaf) {
    leaves_.push_back(std::move(leaf));
    nodes_.push_back({Kind::leaf, nb::object()});
  } else {
    nodes_.push_back({Kind::value, nb::borrow(object)});
  }
  return true;
}

void Tree::take_other(PyObject* object, bool expanded) {
  const RecursionGuard guard;
  if (const auto known = places_of_containers_.find(object); known != places_of_containers_.end()) {
    nodes_.push_back({Kind::again, nb::object(), static_cast<Py_ssize_t>(known->second)});
    return;
  }
  has_expanded_ = true;
  const nb::object answer = ask(object, expanded);
  if (PyUnicode_Check(answer.ptr())) {
    const auto message = place() + ": " + nb::cast<std::string>(answer);
    PyErr_SetString(PyExc_TypeError, message.c_str());
    throw nb::python_error();
  }
  if (PyTuple_Size(answer.ptr()) == 3) return take_container(object, answer);
  const nb::object child = answer[0];
  nb::object build = answer[1];
  if (build.is_none()) {
    nodes_.push_back({Kind::value, child, 0, child.ptr() != object});
    return;
  }
  nodes_.push_back({Kind::call, std::move(build), 1});
  take(child.ptr(), true);
}

nb::object Tree::ask(PyObject* object, bool expanded) {
  try {
    return stay_if_ended([&] { return expand_(nb::handle(object), expanded); });
  } catch (const nb::python_error& error) {
    nb::module_::import_("penstock._errors").attr("note")(error.value(), "raised for " + place());
    throw;
  }
}

void Tree::take_container(PyObject* object, const nb::object& answer) {
  const std::size_t number = containers_.size();
  containers_.push_back({.original = nb::borrow(object), .begin = answer[1], .finish = answer[2]});
  places_of_containers_.emplace(object, number);
  nodes_.push_back({Kind::container, nb::object(), static_cast<Py_ssize_t>(number)});
  const nb::object contents = answer[0];
  take(contents.ptr(), true);
  containers_[number].end = nodes_.size();
}

std::string Tree::place() const {
  std::string text = name_;
  for (const Step& step : path_) {
    text += '[';
    text += step.key == nullptr ? std::to_string(step.index) : name_of_key(step.key, kLongestKey);
    text += ']';
  }
  return text;
}

std::vector<Tree::Place> Tree::match(nb::handle other, nb::handle expand, const std::string& name) {
  name_ = name;
  expand_ = expand;
  next_node_ = 0;
  std::vector<Place> places;
  places.reserve(leaves_.size());
  match_next(nb::borrow(other), places);
  next_node_ = 0;
  return places;
}

void Tree::match_next(nb::object other, std::vector<Place>& places) {
  const RecursionGuard guard;
  const Node& node = nodes_[next_node_++];
  const auto take_items = [&](const char* kind, bool is_kind, const auto& get_item) {
    if (!is_kind || PySequence_Size(other.ptr()) != node.children) {
      throw InvalidArgument(place() + " is not a " + kind + " of " + std::to_string(node.children) +
                            ", as the nest to copy has there.");
    }
    for (Py_ssize_t i = 0; i < node.children; ++i) {
      path_.push_back({nullptr, i});
      match_next(nb::borrow(get_item(other.ptr(), i)), places);
      path_.pop_back();
    }
  };
  switch (node.kind) {
    case Kind::value:
      if (is_array(other.ptr())) throw InvalidArgument(place() + " is an array, and none is copied there.");
      break;
    case Kind::leaf:
      places.push_back({std::move(other), place()});
      break;
    case Kind::again:
      break;
    case Kind::call:
    case Kind::container: {
      const nb::object answer = stay_if_ended([&] { return expand_(other, false); });
      match_next(answer[0], places);
      break;
    }
    case Kind::dict:
      match_dict(node, other.ptr(), places);
      break;
    case Kind::list:
      take_items("list", PyList_Check(other.ptr()), PyList_GetItem);
      break;
    case Kind::tuple:
      take_items("tuple", PyTuple_Check(other.ptr()), PyTuple_GetItem);
      break;
  }
}

void Tree::match_dict(const Node& node, PyObject* other, std::vector<Place>& places) {
  if (!PyDict_Check(other)) throw InvalidArgument(place() + " is not a dict, as the nest to copy has there.");
  for_each_item(node.object.ptr(), [&](PyObject* key, PyObject* /*value*/) {
    path_.push_back({key, 0});
    PyObject* const item = PyDict_GetItemWithError(other, key);  // borrowed
    if (item == nullptr && PyErr_Occurred() != nullptr) throw nb::python_error();
    if (item == nullptr) throw InvalidArgument(place() + " is missing.");
    match_next(nb::borrow(item), places);
    path_.pop_back();
  });
  for_each_item(other, [&](PyObject* key, PyObject* /*value*/) {
    if (PyDict_Contains(node.object.ptr(), key) == 1) return;
    path_.push_back({key, 0});
    throw InvalidArgument(place() + " is not in the nest to copy.");
  });
}

std::string Tree::describe() const {
  std::string text;
  std::size_t node = 0;
  std::size_t leaf = 0;
  describe_next(text, node, leaf);
  return text;
}

void Tree::describe_next(std::string& text, std::size_t& node, std::size_t& leaf) const {
  const Node& here = nodes_[node++];
  const auto add_all = [&](const char* begin, const char* end) {
    text += begin;
    for (Py_ssize_t i = 0; i < here.children; ++i) {
      if (i > 0) text += ", ";
      describe_next(text, node, leaf);
    }
    text += end;
  };
  switch (here.kind) {
    case Kind::value:
      text += "a value";
      break;
    case Kind::leaf:
      text += form_of(leaves_[leaf++]);
      break;
    case Kind::again:
      text += "a container again";
      break;
    case Kind::call:
    case Kind::container:
      text += '(';
      describe_next(text, node, leaf);
      text += ')';
      break;
    case Kind::dict:
      text += '{';
      for_each_item(here.object.ptr(), [&](PyObject* key, PyObject* /*value*/) {
        if (text.back() != '{') text += ", ";
        text += name_of_key(key, PY_SSIZE_T_MAX) + ": ";
        describe_next(text, node, leaf);
      });
      text += '}';
      break;
    case Kind::list:
      add_all("[", "]");
      break;
    case Kind::tuple:
      add_all("(", ")");
      break;
  }
}

// Containers may hold each other in cycles: looks until no further one is found that changes.
void Tree::find_changes() {
  bool is_news = !containers_.empty();
  while (is_news) {
    is_news = false;
    std::size_t node = 0;
    (void)changes_next(node, is_news);
  }
}

bool Tree::changes_next(std::size_t& node, bool& is_news) {
  const Node& here = nodes_[node++];
  bool any = false;
  switch (here.kind) {
    case Kind::value:
      return here.moved;
    case Kind::leaf:
      return true;
    case Kind::again:
      return containers_[static_cast<std::size_t>(here.children)].changes;
    case Kind::call:
      (void)changes_next(node, is_news);
      return true;
    case Kind::container: {
      any = changes_next(node, is_news);
      bool& changes = containers_[static_cast<std::size_t>(here.children)].changes;
      is_news = is_news || any != changes;
      changes = any;
      return any;
    }
    case Kind::dict:
    case Kind::list:
    case Kind::tuple:
      for (Py_ssize_t i = 0; i < here.children; ++i) any = changes_next(node, is_news) || any;
      return any;
  }
  return any;
}

nb::object Tree::build(std::vector<nb::object>& results) {
  if (!containers_.empty()) moved_ = nb::dict();
  return build_next(results);
}

nb::object Tree::build_container(Container& container, std::vector<nb::object>& results) {
  if (!container.changes) {
    next_node_ = container.end;
    return container.original;
  }
  container.made = stay_if_ended([&] { return container.begin(moved_); });
  const nb::object contents = build_next(results);
  container.made = stay_if_ended([&] { return container.finish(contents, moved_); });
  return container.made;
}

nb::object Tree::build_items(nb::object made, Py_ssize_t count, int (*set)(PyObject*, Py_ssize_t, PyObject*),
                             std::vector<nb::object>& results) {
  if (!made.is_valid()) throw nb::python_error();
  for (Py_ssize_t i = 0; i < count; ++i) set(made.ptr(), i, build_next(results).release().ptr());
  return made;
}

nb::object Tree::build_next(std::vector<nb::object>& results) {
  Node& node = nodes_[next_node_++];
  switch (node.kind) {
    case Kind::value:
      return std::move(node.object);
    case Kind::leaf:
      return std::move(results[next_leaf_++]);
    case Kind::call: {
      const nb::object child = build_next(results);
      return node.object(child);
    }
    case Kind::container:
      return build_container(containers_[static_cast<std::size_t>(node.children)], results);
    case Kind::again: {
      const Container& container = containers_[static_cast<std::size_t>(node.children)];
      if (!container.changes) return container.original;
      if (container.made.is_valid() && !container.made.is_none()) return container.made;
      PyErr_SetString(PyExc_RecursionError,
                      "a tuple, or another object that is made of its contents, holds itself");
      throw nb::python_error();
    }
    case Kind::dict: {
      nb::object dict = std::move(node.object);
      for_each_item(dict.ptr(), [&](PyObject* key, PyObject* /*value*/) {
        const nb::object child = build_next(results);
        if (PyDict_SetItem(dict.ptr(), key, child.ptr()) != 0) throw nb::python_error();
      });
      return dict;
    }
    case Kind::list:
      return build_items(nb::steal(PyList_New(node.children)), node.children, PyList_SetItem, results);
    case Kind::tuple:
      return build_items(nb::steal(PyTuple_New(node.children)), node.children, PyTuple_SetItem, results);
  }
  return nb::none();
}

}  // namespace penstock::python
