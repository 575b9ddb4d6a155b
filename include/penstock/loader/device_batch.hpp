#pragma once

#include <penstock/core/dtype.hpp>
#include <penstock/device/stream.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace penstock {

/// One field of a batch in device memory: shape[0] samples side by side, in row-major order.
struct DeviceField {
  std::string name;
  DType dtype = DType::uint8;
  Shape shape;  ///< number of samples first
  std::byte* data = nullptr;
  std::size_t bytes = 0;
};

/// A lease on one slot of the loader's ring. The holder may read and overwrite the batch in it, on the stream
/// given to next() and on those given to use_on. When the lease ends, the slot is refilled once the work
/// queued on those streams until then is done. The host does not wait for that work. The addresses are those
/// of a fixed set of slots. A lease may outlive its loader, but not the streams it is used on. Move-only. Any
/// thread may use it, one at a time.
class DeviceBatch {
 public:
  DeviceBatch(DeviceBatch&& other) noexcept;
  DeviceBatch& operator=(DeviceBatch&& other) noexcept;
  ~DeviceBatch();

  [[nodiscard]] std::size_t size() const noexcept;  ///< samples
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  /// Position of the batch among those that this rank gets in the epoch.
  [[nodiscard]] std::uint64_t index() const noexcept;

  [[nodiscard]] std::size_t field_count() const noexcept;
  /// Valid as long as the lease. Throws InvalidArgument past the last field and, listing the names, for
  /// others.
  [[nodiscard]] const DeviceField& field(std::size_t field) const;
  [[nodiscard]] const DeviceField& field(std::string_view name) const;

  /// The batch's samples as positions in the dataset, in order. Computed at each call.
  [[nodiscard]] std::vector<std::uint64_t> indices() const;

  /// Makes later work on `stream` wait for the batch, and the slot's reuse wait for that work. Does not block
  /// the host. Throws DeviceError.
  void use_on(const Stream& stream);

  /// Ends the lease now, as the destructor does. Throws DeviceError if the work on the slot cannot be marked;
  /// the slot is then never used again.
  void release();

 private:
  friend class BatchLine;
  DeviceBatch(std::shared_ptr<class DeviceRing> ring, struct DeviceSlot* slot) noexcept;

  std::shared_ptr<class DeviceRing> ring_;
  struct DeviceSlot* slot_ = nullptr;
};

}  // namespace penstock
