#pragma once

#include "move/engine.hpp"

#include <nanobind/nanobind.h>

#include <atomic>
#include <cstddef>
#include <filesystem>
#include <memory>
#include <utility>

namespace penstock::python {

/// One call of save_safetensors: the bytes of a .safetensors file in host memory. Copies into it run at the
/// link's speed if a tensor is on a GPU: then the memory is locked.
class WeightSave {
 public:
  /// `engine`: of the GPU for whose copies the memory is locked, or of the host.
  WeightSave(std::shared_ptr<Engine> engine, std::size_t bytes);

  /// True if the memory serves a file of so many bytes as well, with less than half of it idle.
  [[nodiscard]] bool serves(const std::shared_ptr<Engine>& engine, std::size_t bytes) const noexcept;
  /// Frees the memory, which serves no file then.
  void release() noexcept {
    memory_.reset();
    capacity_ = 0;
  }
  /// Begins anew, with a file of so many bytes.
  void begin(std::size_t bytes);

  [[nodiscard]] std::byte* data() const noexcept { return memory_->data(); }
  [[nodiscard]] MemoryKind kind() const noexcept {
    return engine_->is_cuda() ? MemoryKind::pinned : MemoryKind::pageable;
  }
  /// Writes the file, as replace_file does. Blocks the host, without the interpreter's lock.
  void write(const std::filesystem::path& file) const;
  /// Has `write` end soon, with the old file in its place. From any thread.
  void cancel() noexcept { stop_ = true; }

 private:
  const std::shared_ptr<Engine> engine_;
  std::size_t capacity_;
  std::shared_ptr<Storage> memory_;
  std::size_t bytes_;
  std::atomic<bool> stop_{false};
};

void bind_weight_save(nb::module_& module);

}  // namespace penstock::python
