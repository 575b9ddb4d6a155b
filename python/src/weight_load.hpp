#pragma once

#include "engine.hpp"

#include <penstock/data/weights.hpp>

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
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
  /// Opens the files and reads their headers.
  WeightLoad(std::shared_ptr<Engine> engine, const std::vector<std::filesystem::path>& files,
             const std::optional<std::vector<std::string>>& names);
  ~WeightLoad();
  WeightLoad(const WeightLoad&) = delete;
  WeightLoad& operator=(const WeightLoad&) = delete;

  /// The tensors that will be arrays of bytes, each with its type in the file.
  [[nodiscard]] std::vector<std::pair<std::string, std::string>> opaque_types() const;
  /// Allocates the memory, makes the tensors, and begins to read if they are on a GPU. Blocks only for
  /// memory.
  void start();
  /// Blocks until all bytes are in their place. Throws what went wrong; nothing is read any more then.
  void wait();
  /// Has `wait` end soon. From any thread.
  void cancel() noexcept;
  /// The tensors by name. Callable once, after `wait`.
  [[nodiscard]] nb::dict finish();

 private:
  [[nodiscard]] std::shared_ptr<Storage> host_memory(std::size_t bytes) const;

  void end_transfers() noexcept;

  const std::shared_ptr<Engine> engine_;
  std::vector<WeightFile> files_;
  std::vector<std::shared_ptr<Storage>> blocks_;  ///< of each file
  std::vector<Transfer> transfers_;
  std::atomic<bool> stop_{false};
  nb::dict results_;
};

void bind_weight_load(nb::module_& module);

}  // namespace penstock::python
