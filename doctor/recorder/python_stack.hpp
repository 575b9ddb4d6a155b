#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

/// The Python functions that a thread is in, read from memory without the interpreter's lock.
///
/// A thread's own frames do not change while it is in a call of the driver, whoever has the lock, and they
/// keep their code objects alive. So a thread may read its own. Where things lie differs with Python's
/// version: 3.10 to 3.12 have tables here, and from 3.13 on the interpreter says it. Other versions, and
/// interpreters without the lock, give no frames; so does anything that is not what it should be.
namespace penstock::recorder {

struct PythonFrame {
  const void* code = nullptr;
  const void* file =
      nullptr;  ///< of the code object, as its function's name is: another at the same address has others
  const void* function = nullptr;
  std::int32_t offset = 0;  ///< of the instruction, in bytes
  friend bool operator==(const PythonFrame&, const PythonFrame&) = default;
};

/// What a frame is in.
struct PythonPlace {
  std::int32_t line = 0;
  std::string_view file;
  std::string_view function;
};

class PythonStack {
 public:
  /// Looks for an interpreter in the process. False if there is none whose frames can be read. Takes no lock.
  bool attach() noexcept;
  /// "3.12"; empty: no Python.
  [[nodiscard]] const char* version() const noexcept { return version_; }

  /// Fills `frames` with those of the calling thread, the innermost first, and returns their number.
  [[nodiscard]] std::size_t own(std::span<PythonFrame> frames) const noexcept;
  /// Fills `frames` with those of another thread, by its `thread` as `this_thread` gave it, even if it runs
  /// meanwhile: they may then be wrong, but reading them does no harm. None while the interpreter ends.
  [[nodiscard]] std::size_t of(const void* thread, std::span<PythonFrame> frames) const noexcept;
  /// The interpreter's own record of the calling thread; null if it has none.
  [[nodiscard]] const void* this_thread() const noexcept { return attached_ ? this_thread_() : nullptr; }
  /// True if a frame that `of` gave is in the function `name` of a file whose path ends with `file`. Reading
  /// it does no harm, even if it is gone.
  [[nodiscard]] bool is_in(const PythonFrame& frame, std::string_view file,
                           std::string_view name) const noexcept;
  /// The file that such a frame is in. Empty if it is gone, or has other characters than ASCII.
  [[nodiscard]] std::string_view file_of(const PythonFrame& frame, std::span<char> text) const noexcept {
    return read_ascii(frame.file, text);
  }
  /// False on threads without an interpreter, and once it ends: nothing may be asked for names then.
  [[nodiscard]] bool is_running() const noexcept;
  /// True if the code of a frame that `of` gave is still there.
  [[nodiscard]] bool is_alive(const PythonFrame& frame) const noexcept;
  /// Of a frame that `own` gave in the same call, or of one of this thread that is alive. The texts lie in
  /// `text`.
  [[nodiscard]] bool place(const PythonFrame& frame, std::span<char> text, PythonPlace& place) const noexcept;

 private:
  /// Offsets in bytes.
  class CarefulReader;
  struct Layout {
    std::uint32_t thread_frame;  ///< of a thread: its innermost frame, or what points to it
    std::int32_t indirect;       ///< in what points to it; -1: nothing does
    std::uint32_t previous;      ///< of a frame
    std::uint32_t code;
    std::uint32_t instruction;
    std::uint32_t file;  ///< of a code object
    std::uint32_t function;
    std::uint32_t first_code;  ///< its instructions; 0: the frame holds an index instead
    std::uint32_t characters;  ///< of a text of ASCII alone
  };
  [[nodiscard]] bool find_layout(int minor) noexcept;
  template <typename Read>
  [[nodiscard]] std::size_t walk(const void* thread, std::span<PythonFrame> frames,
                                 Read&& get) const noexcept;
  [[nodiscard]] std::string_view read_ascii(const void* object, std::span<char> to) const noexcept;
  [[nodiscard]] bool read_text(const void* object, std::span<char> to, std::string_view& text) const noexcept;

  bool attached_ = false;
  char version_[32] = "";
  Layout layout_{};
  void* (*this_thread_)() = nullptr;
  int (*line_)(const void*, int) = nullptr;
  std::ptrdiff_t (*text_length_)(const void*) = nullptr;
  std::uint32_t (*character_)(const void*, std::ptrdiff_t) = nullptr;
  int (*is_finalizing_)() = nullptr;
  const void* code_type_ = nullptr;
  const void* text_type_ = nullptr;
};

}  // namespace penstock::recorder
