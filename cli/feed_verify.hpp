#pragma once

#include <penstock/loader/loader.hpp>

#include <cstddef>
#include <cstdint>
#include <memory>
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
  ~Verifier();
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

  [[nodiscard]] const VerifyAccount& account() const noexcept;

 private:
  class Checker;
  std::unique_ptr<Checker> checker_;
};

}  // namespace penstock::cli
