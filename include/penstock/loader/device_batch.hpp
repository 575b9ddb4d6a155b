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

/// A lease on one slot of the loader's ring: the batch in it is the holder's, to read or overwrite, on the
/// stream that next() was given and on those named to use_on. When the lease goes, the slot is refilled as
/// soon as the work queued on those streams until then is done; the host does not wait for it. Addresses are
/// those of a fixed set of slots. A lease may outlive its loader, but not the streams it is used on.
/// Move-only; one thread at a time, any thread.
class DeviceBatch {
 public:
  DeviceBatch(DeviceBatch&& other) noexcept;
  DeviceBatch& operator=(DeviceBatch&& other) noexcept;
  ~DeviceBatch();

  [[nodiscard]] std::size_t size() const noexcept;  ///< samples
  [[nodiscard]] std::uint64_t epoch() const noexcept;
  [[nodiscard]] std::uint64_t index()
      const noexcept;  ///< of the batch within what this rank gets of the epoch

  [[nodiscard]] std::size_t field_count() const noexcept;
  /// Valid as long as the lease. Throws InvalidArgument past the last field, and for a name that is none of
  /// the names it lists.
  [[nodiscard]] const DeviceField& field(std::size_t field) const;
  [[nodiscard]] const DeviceField& field(std::string_view name) const;

  /// Which samples of the dataset these are, in order. Computed at each call.
  [[nodiscard]] std::vector<std::uint64_t> indices() const;

  /// Makes later work on `stream` wait for the batch, and the slot's reuse wait for that work. Does not block
  /// the host. Throws DeviceError.
  void use_on(const Stream& stream);

  /// Lets go now, as the destructor does, but throws DeviceError where the work on it cannot be marked; the
  /// slot is then never used again.
  void release();

 private:
  friend class LoaderState;
  DeviceBatch(std::shared_ptr<class DeviceRing> ring, struct DeviceSlot* slot) noexcept;

  std::shared_ptr<class DeviceRing> ring_;
  struct DeviceSlot* slot_ = nullptr;
};

}  // namespace penstock
