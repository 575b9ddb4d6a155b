#include "storage.hpp"

#include <penstock/core/error.hpp>
#include <penstock/core/host_workers.hpp>

#include <sys/mman.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <map>
#include <new>
#include <utility>

namespace penstock::python {
namespace {

constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr int kPopulateWrite = 23;  // MADV_POPULATE_WRITE, Linux 5.14

// The memory of all FrameworkStorage: its begin, and its end. Never destroyed: the last one may outlive it.
struct Held {
  std::mutex mutex;
  std::map<const std::byte*, const std::byte*> ends;
};
Held& held() {
  static Held& all = *new Held;
  return all;
}

// Large results begin on a huge page, so that a first write makes 2 MiB of memory present and not 4 KiB.
std::align_val_t alignment_of(std::size_t bytes, std::size_t least) noexcept {
  return std::align_val_t{bytes >= 4 * kHugePage ? kHugePage : least};
}

// The structure that is handed over and the storage that it keeps alive; its shape and strides follow them.
template <typename Managed>
struct Exported {
  Managed managed;
  std::shared_ptr<Storage> storage;

  static void destroy(Managed* managed) {
    auto* self = static_cast<Exported*>(managed->context);
    self->~Exported();
    ::operator delete(self);
  }
};

template <typename Managed>
Managed* export_view(const TensorView& view) {
  const auto axes = static_cast<std::size_t>(view.ndim);
  void* memory = ::operator new(sizeof(Exported<Managed>) + 2 * axes * sizeof(std::int64_t));
  auto* exported = new (memory) Exported<Managed>{{}, view.storage};
  auto* shape = reinterpret_cast<std::int64_t*>(exported + 1);
  std::copy_n(view.shape, axes, shape);
  std::copy_n(view.strides, axes, shape + axes);
  exported->managed.context = exported;
  exported->managed.deleter = &Exported<Managed>::destroy;
  exported->managed.tensor = {view.data, view.device, view.ndim, view.dtype, shape, shape + axes, 0};
  return &exported->managed;
}

}  // namespace

HostStorage::HostStorage(std::size_t bytes, HostWorkers& workers, std::size_t alignment)
    : alignment_(alignment_of(bytes, alignment)) {
  data_ = static_cast<std::byte*>(::operator new(std::max<std::size_t>(bytes, 1), alignment_, std::nothrow));
  if (data_ == nullptr) throw OutOfMemory("host memory", bytes, 0, 0);
  if (alignment_ != std::align_val_t{kHugePage}) return;
  const std::size_t whole_pages = bytes / kHugePage;
  madvise(data_, whole_pages * kHugePage, MADV_HUGEPAGE);
  // If the kernel is too old for this, the pages come when they are written.
  workers.for_each(whole_pages, [this](std::size_t page) {
    madvise(data_ + page * kHugePage, kHugePage, kPopulateWrite);
  });
}

HostStorage::~HostStorage() { ::operator delete(data_, alignment_); }

PinnedStorage::~PinnedStorage() {
  if (fork_generation() != generation_) return;  // a child does not have the memory
  const std::lock_guard lock(returned_->mutex);
  returned_->buffers.push_back(std::move(buffer_));
}

FrameworkStorage::FrameworkStorage(dlpack::ManagedTensorVersioned* tensor) : tensor_(tensor) {
  data_ = static_cast<std::byte*>(tensor->tensor.data) + tensor->tensor.byte_offset;
  std::size_t bytes = tensor->tensor.dtype.bits / 8;
  for (std::int32_t axis = 0; axis < tensor->tensor.ndim; ++axis) {
    bytes *= static_cast<std::size_t>(tensor->tensor.shape[axis]);
  }
  const std::lock_guard lock(held().mutex);
  held().ends[data_] = data_ + bytes;
}

bool FrameworkStorage::any_holds(const std::byte* data) {
  const std::lock_guard lock(held().mutex);
  const auto after = held().ends.upper_bound(data);
  return after != held().ends.begin() && data < std::prev(after)->second;
}

FrameworkStorage::~FrameworkStorage() {
  if (fork_generation() == generation_) {  // in a child, a thread of the parent may have the lock
    const std::lock_guard lock(held().mutex);
    held().ends.erase(data_);
  }
  if (tensor_->deleter != nullptr) tensor_->deleter(tensor_);
}

PoolStorage::PoolStorage(Device device, std::shared_ptr<const Stream> release_stream, Buffer buffer)
    : device_(std::move(device)), release_stream_(std::move(release_stream)), buffer_(std::move(buffer)) {
  data_ = buffer_.data();
}

PoolStorage::~PoolStorage() {
  // The threads that would move the rest of a transfer belong to the parent.
  if (fork_generation() != generation_) return;
  try {
    for (const auto& transfer : transfers_) {
      // A failed transfer no longer touches its destination.
      try {
        release_stream_->wait(transfer);
      } catch (const std::exception&) {
      }
    }
    for (StreamHandle handle : streams_) {
      Event event = device_.create_event();
      event.record(device_.wrap_stream(handle));
      release_stream_->wait(event);
    }
    if (!transfers_.empty() || !streams_.empty()) buffer_.release_after(*release_stream_);
  } catch (const std::exception&) {
    // The device failed: no work there can still use the memory.
  }
}

void PoolStorage::set_transfers(std::vector<Transfer> transfers) {
  const std::lock_guard lock(mutex_);
  transfers_ = std::move(transfers);
}

void PoolStorage::hand_to(StreamHandle stream) {
  wait_on(device_.wrap_stream(stream));
  const std::lock_guard lock(mutex_);
  if (std::find(streams_.begin(), streams_.end(), stream) == streams_.end()) streams_.push_back(stream);
}

void PoolStorage::wait_on(const Stream& stream) const {
  const std::lock_guard lock(mutex_);
  for (const auto& transfer : transfers_) stream.wait(transfer);
}

void PoolStorage::synchronize() const {
  const std::lock_guard lock(mutex_);
  for (const auto& transfer : transfers_) transfer.synchronize();
}

dlpack::ManagedTensorVersioned* make_managed(const TensorView& view) {
  return export_view<dlpack::ManagedTensorVersioned>(view);
}

dlpack::ManagedTensor* make_legacy_managed(const TensorView& view) {
  return export_view<dlpack::ManagedTensor>(view);
}

}  // namespace penstock::python
