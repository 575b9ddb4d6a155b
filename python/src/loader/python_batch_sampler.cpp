#include "loader/python_batch_sampler.hpp"

#include "frameworks.hpp"
#include "interpreter_lock.hpp"

#include <penstock/core/error.hpp>

#include <nanobind/stl/optional.h>

#include <algorithm>
#include <utility>

namespace penstock::python {

PythonBatchSampler::~PythonBatchSampler() {
  if (!nb::is_alive()) {
    static_cast<void>(batches_.release());
    for (const auto& draw : drawn_) static_cast<void>(draw->array.release());
    return;
  }
  const Locked locked;
  batches_.reset();
  drawn_.clear();
}

void PythonBatchSampler::start_epoch(std::uint64_t) {
  const Locked locked;
  left_ = {};
  draws_ = 0;
  static_cast<void>(ask("start"));
}

template <typename... Arguments>
nb::object PythonBatchSampler::ask(const char* method, Arguments... arguments) const {
  const nb::object batches = this->batches();
  try {
    return stay_if_ended([&]() -> nb::object { return batches.attr(method)(arguments...); });
  } catch (nb::python_error& error) {
    nb::setattr(batches, "_error", error.value());
    throw Interrupted();
  }
}

void PythonBatchSampler::fail() const {
  stay_if_ended([this] { batches().attr("fail")(); });
}

bool PythonBatchSampler::draw() {
  const Locked locked;
  nb::object array = ask("next", draws_);
  if (array.is_none()) return false;
  ++draws_;
  reading_epoch_ = nb::cast<std::optional<std::uint64_t>>(batches().attr("reading_epoch"));
  if (array.ptr() == Py_False) throw Failed();
  Leaf leaf;
  NumPy* const numpy = NumPy::get();
  if (numpy == nullptr || !numpy->read(leaf, array.ptr()) || leaf.ndim() == 0) {
    throw InvalidArgument("A batch of indices is not a NumPy array of uint64.");
  }
  left_ = {reinterpret_cast<const std::uint64_t*>(leaf.data), leaf.bytes / sizeof(std::uint64_t)};
  each_ = static_cast<std::size_t>(leaf.shape()[leaf.ndim() - 1]);
  std::erase_if(drawn_, [](const auto& draw) { return draw.use_count() == 1; });
  drawn_.push_back(std::make_shared<Draw>(std::move(array)));
  return true;
}

bool PythonBatchSampler::lend(Lent& lent) {
  if (left_.empty() && !draw()) return false;
  lent = {left_.first(each_), drawn_.back()};
  left_ = left_.subspan(each_);
  return true;
}

// Called only at the end: lend() gives all batches.
bool PythonBatchSampler::next(std::vector<std::uint64_t>&) { return false; }

}  // namespace penstock::python
