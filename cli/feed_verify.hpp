#pragma once

#include <penstock/loader/loader.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/pinned_ring.hpp>

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

namespace penstock::cli {

/// The comparisons so far.
struct VerifyAccount {
  std::uint64_t batches = 0;
  std::uint64_t samples = 0;
  std::uint64_t bytes = 0;
  double seconds = 0;  ///< of the calling thread, without waiting for the device
};

/// Compares every byte of batches in device memory with the dataset. The batches are copied back into pinned
/// memory on the consumer's stream, two at a time. While one is copied, host threads read the other's samples
/// again and convert them with the host device's gather, which equals a GPU's bit for bit. One thread at a
/// time.
class Verifier {
 public:
  /// `dataset` and `plan` are those of the loader. Throws OutOfMemory.
  Verifier(const Device& device, Dataset dataset, const FeedPlan& plan);
  Verifier(const Verifier&) = delete;
  Verifier& operator=(const Verifier&) = delete;

  /// Enqueues copying a batch back on `stream`, and compares the batch before it. Throws Error that names
  /// epoch, batch, sample, field and byte of the first difference.
  void check(const DeviceBatch& batch, const Stream& stream);
  /// The same for fields that hold the samples `indices` of the dataset.
  void check(std::uint64_t epoch, std::uint64_t batch, std::vector<std::uint64_t> indices,
             std::span<const DeviceField> fields, const Stream& stream);
  /// Compares the batches that were not compared yet.
  void finish();

  [[nodiscard]] const VerifyAccount& account() const noexcept { return account_; }

 private:
  /// The expected delivery of one field, from the loader's plan.
  struct Promise {
    Field field;
    DType to = DType::uint8;
    std::size_t elements = 0;
    std::size_t stored_bytes = 0;  ///< of one sample
    std::size_t bytes = 0;         ///< of one sample, delivered
    bool converts = false;
    ChannelFactors factors;
    std::size_t chunk = 1;  ///< samples that are compared at a time
  };
  struct Difference {
    std::size_t row = 0;
    std::size_t byte = 0;
    std::byte arrived{};
    std::byte expected{};
  };
  /// A batch that is being copied back.
  struct Slot {
    PinnedRing::Slot* pinned = nullptr;
    std::uint64_t epoch = 0;
    std::uint64_t batch = 0;
    std::vector<std::uint64_t> indices;
    bool under_way = false;
  };
  /// The memory and stream of one thread that compares.
  struct Comparer {
    Stream stream;
    Buffer stored;
    Buffer expected;
    std::optional<Difference> found;
  };

  void require_promised(std::span<const DeviceField> fields, std::size_t samples) const;
  void compare(Slot& slot);
  void compare_field(const Slot& slot, std::size_t field, std::span<const std::byte> arrived);
  void compare_chunks(Comparer& comparer, const Slot& slot, std::size_t field,
                      std::span<const std::byte> arrived, std::size_t first_chunk);
  [[nodiscard]] std::span<const std::byte> expect(Comparer& comparer, std::size_t field,
                                                  std::span<const std::uint64_t> indices) const;
  [[nodiscard]] static Promise promise_of(const Field& field, const FieldPlan& plan);
  [[nodiscard]] static std::optional<Difference> difference(std::span<const std::byte> arrived,
                                                            std::span<const std::byte> expected,
                                                            std::size_t sample_bytes, std::size_t first_row);
  [[nodiscard]] Buffer put(const std::vector<float>& values);

  VerifyAccount account_;
  Device device_;
  Device host_ = Device::open("host");
  Dataset dataset_;
  std::size_t batch_size_;
  std::vector<Promise> promises_;
  Pool host_pool_;
  std::optional<Pool> pinned_pool_;
  std::vector<Buffer> scales_, shifts_;
  std::vector<Comparer> comparers_;
  std::optional<PinnedRing> ring_;
  std::array<Slot, 2> slots_;
  std::size_t next_ = 0;
  std::shared_ptr<HostWorkers> workers_;
};

}  // namespace penstock::cli
