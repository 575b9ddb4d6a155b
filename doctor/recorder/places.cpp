#include "places.hpp"

#include "mix.hpp"

namespace penstock::recorder {

std::uint64_t code_key(const PythonFrame& frame) noexcept {
  std::uint64_t hash = 0;
  for (const void* const part : {frame.code, frame.file, frame.function})
    hash = mix(hash, reinterpret_cast<std::uintptr_t>(part));
  return hash | 1;
}

namespace {

/// Never 0.
std::uint64_t key_of(const PythonFrame& frame) noexcept {
  return mix(code_key(frame), static_cast<std::uint32_t>(frame.offset)) | 1;
}

/// Of a stack. Never 0.
std::uint64_t key_of(std::span<const PythonFrame> frames) noexcept {
  std::uint64_t key = 0;
  for (const PythonFrame& frame : frames) key = mix(key, key_of(frame));
  return key | 1;
}

}  // namespace

std::uint32_t NumberTable::find(std::uint64_t key) const noexcept {
  for (std::size_t i = 0; i < kSlots; ++i) {
    const Slot& slot = slots_[(key / 2 + i) % kSlots];
    const std::uint64_t known = slot.key.load(std::memory_order_acquire);
    if (known == key) return slot.number;
    if (known == 0) return 0;
  }
  return 0;
}

bool NumberTable::add(std::uint64_t key, std::uint32_t number) noexcept {
  if (is_full()) return false;
  for (std::size_t i = 0;; ++i) {
    Slot& slot = slots_[(key / 2 + i) % kSlots];
    if (slot.key.load(std::memory_order_relaxed) != 0) continue;
    slot.number = number;
    slot.key.store(key, std::memory_order_release);
    ++used_;
    return true;
  }
}

std::uint64_t Places::own() noexcept {
  PythonFrame frames[recording::kMostFrames];
  return number(std::span(frames).first(python_.own(frames)));
}

std::uint64_t Places::known(std::span<const PythonFrame> frames) const noexcept {
  return frames.empty() ? 0 : stacks_.find(key_of(frames));
}

std::uint64_t Places::number(std::span<const PythonFrame> frames) noexcept {
  if (frames.empty()) return 0;
  const std::uint64_t key = key_of(frames);
  const std::uint32_t known = stacks_.find(key);
  return known != 0 ? known : add(frames, key);
}

std::uint64_t Places::add(std::span<const PythonFrame> frames, std::uint64_t key) noexcept {
  const Lock lock(mutex_);
  if (const std::uint32_t known = stacks_.find(key)) return known;
  std::uint32_t numbers[recording::kMostFrames];
  std::size_t count = 0;
  while (count < frames.size() && add_frame(frames[count], numbers[count])) ++count;
  if (count < frames.size() || stacks_.is_full() ||
      !file_.add_text(recording::TextType::stack, numbers, count * sizeof numbers[0], {})) {
    __atomic_fetch_add(&file_.header().without_place, 1, __ATOMIC_RELAXED);
    return 0;
  }
  static_cast<void>(stacks_.add(key, ++stack_count_));
  return stack_count_;
}

/// Gives the frame its number, and writes its text when it is first seen.
bool Places::add_frame(const PythonFrame& frame, std::uint32_t& number) noexcept {
  std::uint32_t after = frames_.find(key_of(frame));
  if (after == 0) {
    if (!add_text(frame)) return false;
    after = ++frame_count_;
    if (!frames_.add(key_of(frame), after)) return false;
  }
  number = after - 1;
  return true;
}

bool Places::add_text(const PythonFrame& frame) noexcept {
  char text[1024];
  PythonPlace place;
  if (!python_.place(frame, text, place)) place = {0, "?", "?"};
  const std::uint32_t head[] = {static_cast<std::uint32_t>(place.line),
                                static_cast<std::uint32_t>(place.file.size())};
  return file_.add_text(recording::TextType::frame, head, sizeof head, place.file, place.function);
}

}  // namespace penstock::recorder
