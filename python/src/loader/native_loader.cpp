#include "loader/native_loader.hpp"

#include "arrays.hpp"
#include "frameworks.hpp"
#include "interpreter_lock.hpp"
#include "loader/file_field.hpp"
#include "loader/python_batch_sampler.hpp"
#include "signals.hpp"

#include <penstock/core/error.hpp>
#include <penstock/data/readers.hpp>
#include <penstock/data/rows.hpp>

#include <array>
#include <cstring>
#include <span>
#include <utility>

namespace penstock::python {
namespace {

DType dtype_of(const std::string& name, const dlpack::DataType& dtype) {
  if (const auto known = known_dtype(dtype)) return *known;
  throw InvalidArgument("Field '" + name +
                        "' has an unknown dtype; convert it to a bool, integer or float type.");
}

std::span<const std::byte> enclosing(const Leaf& leaf, const std::byte* data, std::size_t bytes) {
  const bool encloses = data <= leaf.data && leaf.data + leaf.bytes <= data + bytes;
  return encloses ? std::span(data, bytes) : std::span<const std::byte>();
}

// The memory that the array is a part of: a tensor's storage, or the array that a NumPy array is a slice of.
std::span<const std::byte> allocation_of(const nb::object& array, const Leaf& leaf) {
  if (leaf.framework == Framework::torch) {
    const nb::object storage = array.attr("untyped_storage")();
    return enclosing(leaf,
                     reinterpret_cast<const std::byte*>(nb::cast<std::uintptr_t>(storage.attr("data_ptr")())),
                     nb::cast<std::size_t>(storage.attr("nbytes")()));
  }
  nb::object outer = array;
  for (nb::object base = outer.attr("base"); NumPy::get()->is_array_exactly(base.ptr());
       base = outer.attr("base")) {
    outer = std::move(base);
  }
  Leaf whole;
  if (!NumPy::get()->read(whole, outer.ptr())) return {};
  return enclosing(leaf, whole.data, whole.bytes);
}

[[noreturn]] void refuse_array(const std::string& name) {
  throw InvalidArgument("Field '" + name +
                        "' is not an array of whole bytes that lie side by side, or its dtype is not known; "
                        "convert it to a bool, integer or float type.");
}

/// Bytes from one sample of an array to the next.
std::int64_t stride_of(const nb::object& array, const Leaf& leaf) {
  if (leaf.framework != Framework::torch) return nb::cast<std::int64_t>(array.attr("strides")[nb::int_(0)]);
  return nb::cast<std::int64_t>(array.attr("stride")(0)) * (leaf.dtype.bits / 8);
}

/// Describes an array of which each sample lies side by side, and returns the distance of the samples: 0 if
/// they lie side by side, too. Otherwise `leaf` spans the gaps between them.
std::size_t describe_samples(Leaf& leaf, const std::string& name, const nb::object& array) {
  if (read_exactly(leaf, array.ptr())) return 0;
  if (nb::len(array) < 2 || !read_exactly(leaf, nb::object(array[nb::slice(0, 1)]).ptr())) refuse_array(name);
  const std::int64_t stride = stride_of(array, leaf);
  if (stride <= 0) refuse_array(name);
  leaf.bytes += (nb::len(array) - 1) * static_cast<std::size_t>(stride);
  return static_cast<std::size_t>(stride);
}

FieldReaderPtr read_field(const std::string& name, const nb::object& array) {
  if (FieldReaderPtr file = read_file_field(name, array)) return file;
  Leaf leaf;
  const std::size_t stride = describe_samples(leaf, name, array);
  if (leaf.ndim() == 0)
    throw InvalidArgument("Field '" + name + "' is a scalar; its first axis must count samples.");
  Field field;
  field.name = name;
  field.dtype = dtype_of(name, leaf.dtype);
  field.shape.assign(leaf.shape() + 1, leaf.shape() + leaf.ndim());
  const auto allocation = allocation_of(array, leaf);
  if (leaf.framework == Framework::torch && leaf.bytes > 0 && allocation.empty()) {
    throw InvalidArgument("Field '" + name +
                          "' is a tensor whose storage is smaller than the tensor: it was freed or resized.");
  }
  // A tensor may be given other memory while it is read; its storage keeps this one.
  const nb::object owner = leaf.framework == Framework::torch
                               ? nb::object(nb::make_tuple(array, array.attr("untyped_storage")()))
                               : array;
  const std::span memory(leaf.data, leaf.bytes);
  if (stride != 0) return read_strided(std::move(field), memory, stride, keep_alive(owner));
  return read_array(std::move(field), memory, keep_alive(owner), allocation);
}

Loader make_loader(const EngineDestination& destination, Dataset dataset, LoaderOptions options) {
  destination.refuse_closed();
  const LinkProfile& profile = destination.engine().profile();
  if (profile.measured) options.profile = profile;
  Destination to = destination.destination();
  const Unlocked unlocked;
  return Loader(std::move(dataset), std::move(to), std::move(options));
}

class UnderWay {
 public:
  explicit UnderWay(bool& flag) : flag_(flag) { flag_ = true; }
  ~UnderWay() { flag_ = false; }
  UnderWay(const UnderWay&) = delete;
  UnderWay& operator=(const UnderWay&) = delete;

 private:
  bool& flag_;
};

}  // namespace

Dataset make_dataset(const std::vector<std::pair<std::string, nb::object>>& arrays) {
  std::vector<FieldReaderPtr> readers;
  for (const auto& [name, array] : arrays) readers.push_back(read_field(name, array));
  return Dataset(std::move(readers));
}

NativeLoader::NativeLoader(EngineDestination destination, Dataset dataset, LoaderOptions options,
                           std::size_t rows_each)
    : destination_(std::move(destination)),
      rows_each_(rows_each),
      loader_(make_loader(destination_, std::move(dataset), std::move(options))) {
  for (const auto& engine : destination_.engines()) {
    streams_.push_back(std::make_shared<const Stream>(engine->device().create_stream()));
  }
}

NativeLoader::~NativeLoader() {
  // The loader's threads may release the arrays last, and then take the interpreter's lock.
  const Unlocked unlocked;
  loader_.reset();
}

nb::object NativeLoader::next() {
  destination_.refuse_closed();
  const auto& receivers = destination_.engines();
  std::vector<Stream> streams;
  std::vector<std::shared_ptr<const Stream>> own;
  for (std::size_t i = 0; i < receivers.size(); ++i) {
    streams.push_back(stream_of_next(*receivers[i], *streams_[i]));
    own.push_back(is_for_torch(*receivers[i]) ? nullptr : streams_[i]);
  }
  return with_sampler_errors(loader_->options(), [&]() -> nb::object {
    if (kept_.empty()) before_ = loader_->state();
    const UnderWay under_way(is_under_way_);
    Leases leases = std::exchange(kept_, {});
    try {
      {
        const Unlocked unlocked;
        if (leases.empty()) {
          leases = take(streams, own);
        } else {
          for (std::size_t i = 0; i < leases.size(); ++i) leases[i]->hand_to(streams[i].native());
        }
        for (std::size_t i = 0; i < leases.size(); ++i) wait_if_on_host(*receivers[i], streams[i]);
      }
      return make(leases);
    } catch (const nb::python_error&) {
      kept_ = std::move(leases);
      throw;
    }
  });
}

NativeLoader::Leases NativeLoader::take(const std::vector<Stream>& streams,
                                        const std::vector<std::shared_ptr<const Stream>>& own) {
  Leases leases;
  const auto lease = [&](DeviceBatch& batch) {
    const std::size_t i = leases.size();
    leases.push_back(
        std::make_shared<LeaseStorage>(destination_.engines()[i]->device(), own[i], std::move(batch)));
  };
  if (streams.size() == 1) {
    if (auto batch = loader_->next(streams.front(), &hear_signals)) lease(*batch);
  } else if (auto batches = loader_->next(streams, &hear_signals)) {
    for (DeviceBatch& batch : *batches) lease(batch);
  }
  return leases;
}

nb::object NativeLoader::make(const Leases& leases) const {
  if (leases.empty()) return nb::none();
  const Dataset& dataset = loader_->dataset();
  if (!destination_.is_to_all())
    return make_fields(destination_.engine(), leases.front(), dataset, rows_each_);
  nb::list all;
  for (std::size_t i = 0; i < leases.size(); ++i) {
    all.append(make_fields(*destination_.engines()[i], leases[i], dataset));
  }
  return all;
}

SamplerState NativeLoader::state(bool handed_out) const {
  return kept_.empty() && handed_out && !is_under_way_ ? loader_->state() : before_;
}

void NativeLoader::start_epoch(std::uint64_t epoch) {
  with_sampler_errors(loader_->options(), [&] { drop_and([&] { loader_->start_epoch(epoch); }); });
}

}  // namespace penstock::python
