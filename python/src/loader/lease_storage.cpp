#include "loader/lease_storage.hpp"

#include "arrays.hpp"
#include "frameworks.hpp"
#include "signals.hpp"

#include <chrono>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::python {
namespace {

nb::object make_field(const Engine& engine, const std::shared_ptr<LeaseStorage>& storage,
                      const DeviceField& field) {
  const auto ndim = field.shape.size();
  std::vector<std::int64_t> shape(field.shape.begin(), field.shape.end());
  std::vector<std::int64_t> strides(ndim);
  std::int64_t elements = 1;
  for (std::size_t axis = ndim; axis-- > 0;) {
    strides[axis] = elements;
    elements *= shape[axis];
  }
  const bool cuda = engine.is_cuda();
  const TensorView view{storage,
                        field.data,
                        {cuda ? dlpack::kCuda : dlpack::kCpu, cuda ? engine.index() : 0},
                        dlpack_of(field.dtype),
                        static_cast<std::int32_t>(ndim),
                        shape.data(),
                        strides.data()};
  if (Torch* torch = Torch::get(); torch != nullptr) return torch->make(view);
  return cuda ? make_array(storage, view) : NumPy::get()->make(view);
}

}  // namespace

LeaseStorage::LeaseStorage(Device device, std::shared_ptr<const Stream> stream, DeviceBatch batch)
    : device_(std::move(device)), stream_(std::move(stream)), batch_(std::move(batch)) {}

void LeaseStorage::hand_to(StreamHandle stream) {
  const std::lock_guard lock(mutex_);
  batch_.use_on(device_.wrap_stream(stream));
}

void LeaseStorage::wait_on(const Stream& stream) const {
  Event arrived = device_.create_event();
  arrived.record(*stream_);
  stream.wait(arrived);
}

void LeaseStorage::synchronize() const { stream_->synchronize(); }

void wait_for_host(const Device& device, const Stream& stream) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kSpins{1};
  constexpr std::chrono::milliseconds kPatience{50};
  Event done = device.create_event();
  done.record(stream);
  const auto begin = Clock::now();
  auto heard = begin;
  while (!done.query()) {
    const auto now = Clock::now();
    if (now - begin < kSpins) {
      std::this_thread::yield();
      continue;
    }
    if (now - heard >= kPatience) {
      hear_signals();
      heard = now;
    }
    std::this_thread::sleep_for(kSpins);
  }
}

bool is_for_torch(const Engine& engine) { return Torch::get() != nullptr && engine.is_cuda(); }

Stream stream_of_next(const Engine& engine, const Stream& own) {
  return engine.device().wrap_stream(is_for_torch(engine) ? Torch::get()->current_stream(engine.index())
                                                          : own.native());
}

void wait_if_on_host(const Engine& engine, const Stream& stream) {
  if (!engine.is_cuda()) wait_for_host(engine.device(), stream);
}

nb::list make_fields(const Engine& engine, const std::shared_ptr<LeaseStorage>& storage) {
  const DeviceBatch& leased = storage->batch();
  nb::list arrays;
  for (std::size_t f = 0; f < leased.field_count(); ++f) {
    arrays.append(make_field(engine, storage, leased.field(f)));
  }
  return arrays;
}

}  // namespace penstock::python
