#include "doctor/timeline/frame_names.hpp"

#include "doctor/timeline/call_sites.hpp"

#include <utility>

namespace penstock {

std::uint32_t FrameNames::called_by(std::uint32_t name, std::uint32_t caller) {
  if (caller == kNoName) return name;
  const std::uint64_t key = std::uint64_t{caller} << 32U | name;
  if (const auto known = frames_.find(key); known != frames_.end()) return known->second;
  if (frames_.size() >= kMost || timeline_.names[name].size() > room_) return name;
  const auto frame = static_cast<std::uint32_t>(timeline_.names.size());
  std::string text = timeline_.names[name];
  room_ -= text.size();
  timeline_.names.push_back(std::move(text));
  timeline_.callers[frame] = caller;
  frames_[key] = frame;
  return frame;
}

std::vector<std::string> stack_of(const Timeline& timeline, std::uint32_t frame) {
  std::vector<std::string> stack;
  while (frame != kNoName && stack.size() < kMostStackFrames) {
    stack.push_back(timeline.names[frame]);
    const auto caller = timeline.callers.find(frame);
    frame = caller != timeline.callers.end() ? caller->second : kNoName;
  }
  return stack;
}

}  // namespace penstock
