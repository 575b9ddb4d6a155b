#include "doctor/timeline/call_sites.hpp"

namespace penstock {

namespace {

CallSite site_on(const Timeline& timeline, const std::vector<const TimelineHostSpan*>& stack, TraceTime now) {
  CallSite site;
  for (auto span = stack.rbegin(); span != stack.rend(); ++span) {
    const TimelineHostSpan& open = **span;
    if (open.time.end <= now) continue;  // spans that do not nest, in a damaged recording
    if (open.kind == HostSpanKind::loader_wait) site.in_wait = true;
    if (site.frame != kNoName) continue;
    if (open.kind == HostSpanKind::frame) site.frame = open.name;
    if (open.kind == HostSpanKind::op) {
      // Outside operators of ATen are those of autograd and compiled graphs, which name no cause.
      const bool better = site.op == kNoName || timeline.names[open.name].starts_with("aten::");
      if (better) site.op = open.name;
      if (better) site.op_time = open.time;
    }
  }
  return site;
}

}  // namespace

std::vector<KnownCall> find_call_sites(const Timeline& timeline) {
  std::vector<KnownCall> known;
  std::vector<const TimelineHostSpan*> stack;
  std::size_t next = 0;
  std::uint16_t thread = 0;
  for (std::size_t i = 0; i < timeline.calls.size(); ++i) {
    const TimelineCall& call = timeline.calls[i];
    if (call.kind == CallKind::launch) continue;
    if (call.thread != thread) stack.clear();
    thread = call.thread;
    for (; next < timeline.host.size(); ++next) {
      const TimelineHostSpan& span = timeline.host[next];
      if (span.thread > thread || (span.thread == thread && span.time.begin > call.time.begin)) break;
      if (span.thread < thread) continue;
      while (!stack.empty() && stack.back()->time.end <= span.time.begin) stack.pop_back();
      stack.push_back(&span);
    }
    known.push_back({i, site_on(timeline, stack, call.time.begin)});
  }
  return known;
}

}  // namespace penstock
