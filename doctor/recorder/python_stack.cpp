#include "python_stack.hpp"

#include "careful_copy.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <type_traits>

namespace penstock::recorder {

namespace {

constexpr std::size_t kTypeOffset = 8;     // of any object, unless the interpreter is built for debugging
constexpr std::size_t kLengthOffset = 16;  // of a text
constexpr std::size_t kSizeOffset = 16;    // of a code object from 3.11 on, in units of an instruction

template <typename Value>
Value read(const void* base, std::size_t offset) noexcept {
  Value value;
  std::memcpy(static_cast<void*>(&value), static_cast<const char*>(base) + offset, sizeof value);
  return value;
}

template <typename Function>
bool find(const char* name, Function& function) noexcept {
  function = reinterpret_cast<Function>(::dlsym(RTLD_DEFAULT, name));
  return function != nullptr;
}

const void* type_of(const void* object) noexcept { return read<const void*>(object, kTypeOffset); }

/// Objects are aligned. From 3.14 on, frames mark their pointers in the lowest bits.
const void* unmarked(const void* pointer) noexcept {
  constexpr std::uintptr_t kMarks = 7;
  return static_cast<const char*>(pointer) - (reinterpret_cast<std::uintptr_t>(pointer) & kMarks);
}

/// Appends a character as UTF-8. False if it does not fit.
bool append(std::span<char> to, std::size_t& used, std::uint32_t character) noexcept {
  char bytes[4];
  std::size_t count = 0;
  if (character < 0x80) {
    bytes[count++] = static_cast<char>(character);
  } else if (character < 0x800) {
    bytes[count++] = static_cast<char>(0xC0 | character >> 6);
    bytes[count++] = static_cast<char>(0x80 | (character & 0x3F));
  } else if (character < 0x10000) {
    bytes[count++] = static_cast<char>(0xE0 | character >> 12);
    bytes[count++] = static_cast<char>(0x80 | (character >> 6 & 0x3F));
    bytes[count++] = static_cast<char>(0x80 | (character & 0x3F));
  } else {
    bytes[count++] = static_cast<char>(0xF0 | character >> 18);
    bytes[count++] = static_cast<char>(0x80 | (character >> 12 & 0x3F));
    bytes[count++] = static_cast<char>(0x80 | (character >> 6 & 0x3F));
    bytes[count++] = static_cast<char>(0x80 | (character & 0x3F));
  }
  if (used + count > to.size()) return false;
  std::memcpy(to.data() + used, bytes, count);
  used += count;
  return true;
}

}  // namespace

/// The offsets of 3.10 to 3.12 are those of CPython's headers on 64-bit machines. They have not changed
/// within a version. From 3.13 on, _PyRuntime begins with them: the indices are those of _Py_DebugOffsets,
/// counted in 8 bytes.
bool PythonStack::find_layout(int minor) noexcept {
  switch (minor) {
    case 10:
      layout_ = {24, -1, 24, 32, 96, 104, 112, 0, 48};
      return true;
    case 11:
      layout_ = {56, 8, 48, 32, 56, 112, 120, 184, 48};
      return true;
    case 12:
      layout_ = {56, 0, 8, 0, 56, 112, 120, 192, 40};
      return true;
    case 13:
    case 14:
      break;
    default:
      return false;
  }
  const void* runtime = nullptr;
  if (!find("_PyRuntime", runtime) || std::memcmp(runtime, "xdebugpy", 8) != 0) return false;
  const auto at = [runtime](std::size_t index) { return read<std::uint64_t>(runtime, 8 * index); };
  const std::uint64_t version = at(1);
  const std::uint64_t free_threaded = at(2);
  if (version >> 16 != (std::uint64_t{3} << 8 | static_cast<unsigned>(minor)) || free_threaded != 0)
    return false;
  const std::size_t thread = minor == 13 ? 19 : 22;
  const std::size_t frame = thread + 9;
  const std::size_t code = minor == 13 ? frame + 6 : frame + 8;
  const std::size_t indices[] = {thread + 4, frame + 1, frame + 2, frame + 3, code + 1, code + 2, code + 9};
  std::uint32_t offsets[7];
  for (std::size_t i = 0; i < 7; ++i) {
    constexpr std::uint64_t kMost = 4096;
    if (at(indices[i]) > kMost) return false;
    offsets[i] = static_cast<std::uint32_t>(at(indices[i]));
  }
  layout_ = {offsets[0], -1, offsets[1], offsets[2], offsets[3], offsets[4], offsets[5], offsets[6], 40};
  return true;
}

bool PythonStack::attach() noexcept {
  if (attached_) return true;
  const char* (*get_version)() = nullptr;
  if (!find("Py_GetVersion", get_version)) return false;
  const char* const version = get_version();
  int minor = 0;
  int patch = 0;
  char next = 0;
  // "3.12.1 (main, ...": a letter behind the numbers is of a version before the release.
  if (std::sscanf(version, "3.%d.%d%c", &minor, &patch, &next) < 2) return false;
  std::snprintf(version_, sizeof version_, "3.%d", minor);
  if (next != ' ' && next != '+') return false;
  if (std::strstr(version, "free-threading") != nullptr) return false;
  attached_ = find_layout(minor) && find("PyGILState_GetThisThreadState", this_thread_) &&
              find("PyCode_Addr2Line", line_) && find("PyUnicode_GetLength", text_length_) &&
              find("PyUnicode_ReadChar", character_) && find("PyCode_Type", code_type_) &&
              find("PyUnicode_Type", text_type_);
  // Public from 3.13 on.
  if (!find("Py_IsFinalizing", is_finalizing_)) find("_Py_IsFinalizing", is_finalizing_);
  return attached_;
}

/// Of an instruction, in code of so many units from `first` on. A frame that begins while it is looked at may
/// still have the instruction of another one: then it is -1, of the function's first line. The interpreter
/// does not check what it is asked for.
std::int32_t offset_in(const char* first, std::int64_t units, const char* instruction) noexcept {
  constexpr std::int64_t kUnitBytes = 2;
  const std::int64_t offset =
      reinterpret_cast<std::intptr_t>(instruction) - reinterpret_cast<std::intptr_t>(first);
  const bool is_inside = offset >= 0 && units < (std::int64_t{1} << 30) && offset < kUnitBytes * units;
  return is_inside ? static_cast<std::int32_t>(offset) : -1;
}

/// Reads memory that may be gone, an object at a time.
class PythonStack::CarefulReader {
 public:
  template <typename Value>
  [[nodiscard]] bool operator()(const void* base, std::size_t offset, Value& value) {
    if (base != base_) {
      base_ = base;
      got_ = copy_carefully(base, bytes_);
    }
    if (offset + sizeof value > got_) return false;
    std::memcpy(static_cast<void*>(&value), bytes_ + offset, sizeof value);
    return true;
  }

 private:
  const void* base_ = nullptr;
  std::size_t got_ = 0;
  char bytes_[256];
};

/// `get(base, offset, value)` reads a value, and says whether it could.
template <typename Read>
std::size_t PythonStack::walk(const void* thread, std::span<PythonFrame> frames, Read&& get) const noexcept {
  const void* frame = nullptr;
  if (!get(thread, layout_.thread_frame, frame)) return 0;
  if (layout_.indirect >= 0 && frame != nullptr &&
      !get(frame, static_cast<std::size_t>(layout_.indirect), frame))
    return 0;
  std::size_t count = 0;
  for (std::size_t steps = 0; frame != nullptr && steps < 2 * frames.size() && count < frames.size();
       ++steps) {
    const void* code = nullptr;
    const void* type = nullptr;
    const void* previous = nullptr;
    const char* instruction = nullptr;
    if (!get(frame, layout_.code, code) || !get(frame, layout_.instruction, instruction) ||
        !get(frame, layout_.previous, previous)) {
      break;
    }
    code = unmarked(code);
    // Frames of the interpreter itself hold other objects, or none.
    if (code != nullptr && get(code, kTypeOffset, type) && type == code_type_) {
      PythonFrame& found = frames[count++];
      found.code = code;
      if (!get(code, layout_.file, found.file) || !get(code, layout_.function, found.function)) return 0;
      if (layout_.first_code == 0) {
        found.offset = 2 * static_cast<std::int32_t>(reinterpret_cast<std::intptr_t>(instruction));
      } else {
        std::int64_t units = 0;
        if (!get(code, kSizeOffset, units)) return 0;
        found.offset = offset_in(static_cast<const char*>(code) + layout_.first_code, units, instruction);
      }
    }
    frame = previous;
  }
  return count;
}

std::size_t PythonStack::own(std::span<PythonFrame> frames) const noexcept {
  const void* const thread = this_thread();
  if (thread == nullptr) return 0;
  return walk(thread, frames, [](const void* base, std::size_t offset, auto& value) {
    value = read<std::remove_reference_t<decltype(value)>>(base, offset);
    return true;
  });
}

std::size_t PythonStack::of(const void* thread, std::span<PythonFrame> frames) const noexcept {
  if (!attached_ || thread == nullptr || is_finalizing_ == nullptr || is_finalizing_() != 0) return 0;
  return walk(thread, frames, CarefulReader());
}

std::string_view PythonStack::read_ascii(const void* object, std::span<char> to) const noexcept {
  CarefulReader get;
  const void* type = nullptr;
  std::ptrdiff_t length = 0;
  if (object == nullptr || !get(object, kTypeOffset, type) || type != text_type_ ||
      !get(object, kLengthOffset, length) || length < 0 || static_cast<std::size_t>(length) > to.size())
    return {};
  to = to.first(static_cast<std::size_t>(length));
  if (copy_carefully(static_cast<const char*>(object) + layout_.characters, to) != to.size()) return {};
  return {to.data(), to.size()};
}

bool PythonStack::is_in(const PythonFrame& frame, std::string_view file,
                        std::string_view name) const noexcept {
  char text[1024];
  return read_ascii(frame.function, text) == name && read_ascii(frame.file, text).ends_with(file);
}

bool PythonStack::is_running() const noexcept {
  return is_finalizing_ != nullptr && is_finalizing_() == 0 && this_thread() != nullptr;
}

bool PythonStack::is_alive(const PythonFrame& frame) const noexcept {
  CarefulReader get;
  // Of freed memory, the first word is the address of other free memory, or 0. An object's references are in
  // its lower half, and what may be in the highest quarter are flags.
  std::uint64_t references = 0;
  if (!get(frame.code, 0, references) || static_cast<std::uint32_t>(references) == 0 ||
      (references >> 32 & 0xFFFF) != 0)
    return false;
  const void* type = nullptr;
  const void* file = nullptr;
  const void* function = nullptr;
  return get(frame.code, kTypeOffset, type) && type == code_type_ && get(frame.code, layout_.file, file) &&
         file == frame.file && get(frame.code, layout_.function, function) && function == frame.function;
}

bool PythonStack::read_text(const void* object, std::span<char> to, std::string_view& text) const noexcept {
  if (object == nullptr || type_of(object) != text_type_) return false;
  const std::ptrdiff_t length = text_length_(object);
  std::size_t used = 0;
  for (std::ptrdiff_t i = 0; i < length; ++i) {
    if (!append(to, used, character_(object, i))) break;
  }
  text = {to.data(), used};
  return true;
}

bool PythonStack::place(const PythonFrame& frame, std::span<char> text, PythonPlace& place) const noexcept {
  if (!read_text(frame.file, text.first(text.size() / 2), place.file)) return false;
  if (!read_text(frame.function, text.subspan(text.size() / 2), place.function)) return false;
  place.line = line_(frame.code, frame.offset);
  return true;
}

}  // namespace penstock::recorder
