#include "loader/lease_storage.hpp"

#include "frameworks.hpp"
#include "signals.hpp"

#include <chrono>
#include <thread>
#include <utility>

namespace penstock::python {

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

nb::list make_fields(const Engine& engine, const std::shared_ptr<LeaseStorage>& storage,
                     const Dataset& dataset, std::size_t rows_each) {
  const DeviceBatch& leased = storage->batch();
  const std::uint64_t epoch = leased.epoch();
  const bool is_pack = dataset.reader(0)->samples_in_epoch(epoch).has_value();
  const std::uint64_t pack = is_pack ? leased.indices().front() : 0;
  nb::list arrays;
  for (std::size_t f = 0; f < leased.field_count(); ++f) {
    const DeviceField& field = leased.field(f);
    Shape shape = is_pack ? dataset.reader(f)->shape_in_epoch(epoch, pack) : field.shape;
    if (rows_each > 0) {
      shape.front() /= rows_each;
      shape.insert(shape.begin() + 1, rows_each);
    }
    const Leaf leaf = describe(field.dtype, shape);
    arrays.append(engine.make(leaf, storage, field.data, Torch::get() != nullptr));
  }
  if (is_pack) arrays.append(nb::make_tuple(epoch, pack));
  return arrays;
}

}  // namespace penstock::python
