#pragma once

#include "move/destination.hpp"

#include <penstock/data/weights.hpp>

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace penstock::python {

/// One call of load_safetensors, in steps: between them Python chooses dtypes, and waits so that it hears
/// signals. It may be dropped at any of them.
class WeightLoad {
 public:
  /// Opens the files and reads their headers. Other processes of the destination load the same.
  WeightLoad(EngineDestination destination, const std::vector<std::filesystem::path>& files,
             const std::optional<std::vector<std::string>>& names,
             const std::map<std::string, WeightRows>& rows);
  ~WeightLoad();
  WeightLoad(const WeightLoad&) = delete;
  WeightLoad& operator=(const WeightLoad&) = delete;

  /// The tensors that will be arrays of bytes, along one axis: those of a type that DType lacks.
  [[nodiscard]] std::vector<WeightTensor> opaque() const;
  /// Of all tensors to load; and of those, the bytes that this process has read so far. From any thread.
  [[nodiscard]] std::uint64_t bytes() const noexcept;
  [[nodiscard]] std::uint64_t bytes_read() const noexcept;
  /// Allocates the memory, makes the tensors, and begins to read, unless the host alone receives, or other
  /// processes load the same. Blocks only for memory.
  void start();
  /// As fill_ranks, of this process and the others.
  [[nodiscard]] bool fill_with_ranks() const;
  /// Begins to read. Called by start, unless there are other processes.
  void send_all();
  /// Blocks until all bytes are in their place. Throws what went wrong; nothing is read any more then.
  void wait();
  /// Has `wait` and `fill_with_ranks` end soon. From any thread.
  void cancel() noexcept;
  /// The tensors by name, of each device. Callable once, after `wait`.
  [[nodiscard]] std::vector<nb::dict> finish();

 private:
  using Blocks = std::vector<std::shared_ptr<Storage>>;  ///< of each file

  /// True if the file is read into the memory of the results.
  [[nodiscard]] bool stays_on_host() const {
    return !destination_.group() && !destination_.rank() && !destination_.engine().is_cuda();
  }
  /// Makes the tensors of one device.
  void make_tensors(std::size_t device, Torch* torch);
  [[nodiscard]] Transfer send(std::size_t file, const std::vector<const Stream*>& after) const;

  void end_transfers() noexcept;

  const EngineDestination destination_;
  std::vector<WeightFile> files_;
  std::vector<Blocks> blocks_;   ///< of each device
  std::vector<Stream> streams_;  ///< of each device: what comes before
  std::vector<Transfer> transfers_;
  std::atomic<bool> stop_{false};
  std::vector<nb::dict> results_;  ///< of each device
};

void bind_weight_load(nb::module_& module);

}  // namespace penstock::python
