#pragma once

#include "dlpack.hpp"

#include <penstock/core/fork.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/buffer.hpp>
#include <penstock/memory/shared_slots.hpp>
#include <penstock/transfer/transfer.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

namespace penstock::python {

/// The memory of results. The tensors made of it share it, and the last one frees it: from any thread,
/// without the interpreter's lock, also after the interpreter's end.
class Storage {
 public:
  virtual ~Storage() = default;
  Storage(const Storage&) = delete;
  Storage& operator=(const Storage&) = delete;
  [[nodiscard]] std::byte* data() const noexcept { return data_; }

 protected:
  Storage() noexcept = default;
  std::byte* data_ = nullptr;
};

/// Ordinary host memory. Large memory is in huge pages if the system gives them, which `workers` make
/// present: threads that copy to parts of one page would each clear a whole one.
class HostStorage final : public Storage {
 public:
  /// `alignment`: at least that of a cache line. Blocks the host until large memory is present. Throws
  /// OutOfMemory.
  HostStorage(std::size_t bytes, HostWorkers& workers, std::size_t alignment);
  ~HostStorage() override;

 private:
  const std::align_val_t alignment_;
};

/// Locked memory that was given back. A copy that the program has enqueued on any stream may still read it.
struct ReturnedMemory {
  std::mutex mutex;
  std::vector<Buffer> buffers;
};

/// Locked host memory of a pool.
class PinnedStorage final : public Storage {
 public:
  PinnedStorage(Buffer buffer, std::shared_ptr<ReturnedMemory> returned) noexcept
      : buffer_(std::move(buffer)), returned_(std::move(returned)) {
    data_ = buffer_.data();
  }
  ~PinnedStorage() override;

 private:
  Buffer buffer_;
  std::shared_ptr<ReturnedMemory> returned_;
  const std::uint64_t generation_ = fork_generation();
};

/// Memory that a framework allocated and handed over by DLPack.
class FrameworkStorage final : public Storage {
 public:
  explicit FrameworkStorage(dlpack::ManagedTensorVersioned* tensor);
  ~FrameworkStorage() override;

  /// True if `data` lies in memory of one of these. Thread-safe.
  [[nodiscard]] static bool any_holds(const std::byte* data);

 private:
  dlpack::ManagedTensorVersioned* tensor_;
  const std::uint64_t generation_ = fork_generation();
};

/// Device memory that other libraries may use on streams of their own.
class DeviceStorage : public Storage {
 public:
  /// Makes `stream` wait until the memory holds the sent bytes, and remembers that the stream uses it.
  virtual void hand_to(StreamHandle stream) = 0;
  /// Makes `stream` wait until the memory holds the sent bytes.
  virtual void wait_on(const Stream& stream) const = 0;
  /// Blocks the host until the memory holds the sent bytes.
  virtual void synchronize() const = 0;
};

/// Device memory of our own pool. It goes back to the pool when two things are done: the transfers into it,
/// and the work that was queued on each of its streams when the last owner released it.
class PoolStorage final : public DeviceStorage {
 public:
  /// `release_stream` orders the release; nothing else runs on it.
  PoolStorage(Device device, std::shared_ptr<const Stream> release_stream, Buffer buffer);
  ~PoolStorage() override;

  void set_transfers(std::vector<Transfer> transfers);
  void hand_to(StreamHandle stream) override;
  void wait_on(const Stream& stream) const override;
  void synchronize() const override;

 private:
  Device device_;
  std::shared_ptr<const Stream> release_stream_;
  Buffer buffer_;
  const std::uint64_t generation_ = fork_generation();
  mutable std::mutex mutex_;
  std::vector<Transfer> transfers_;
  std::vector<StreamHandle> streams_;
};

/// A slot that a worker process has filled. It is free again when the last of its arrays is gone.
class SlotStorage final : public Storage {
 public:
  explicit SlotStorage(SlotLease lease) noexcept : lease_(std::move(lease)) { data_ = lease_.bytes().data(); }

  [[nodiscard]] SlotLease& lease() noexcept { return lease_; }
  [[nodiscard]] bool contains(const std::byte* data) const noexcept {
    return data >= data_ && data < data_ + lease_.bytes().size();
  }

 private:
  SlotLease lease_;
};

/// A tensor over a part of a storage.
struct TensorView {
  std::shared_ptr<Storage> storage;
  std::byte* data = nullptr;
  dlpack::Device device;
  dlpack::DataType dtype;
  std::int32_t ndim = 0;
  const std::int64_t* shape = nullptr;
  const std::int64_t* strides = nullptr;  ///< in elements
};

/// The view in DLPack's form. Its deleter releases the storage. Throws std::bad_alloc.
[[nodiscard]] dlpack::ManagedTensorVersioned* make_managed(const TensorView& view);
[[nodiscard]] dlpack::ManagedTensor* make_legacy_managed(const TensorView& view);

}  // namespace penstock::python
