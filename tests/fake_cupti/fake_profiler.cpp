#include "cupti.hpp"

extern "C" {
// By name, as a library that is linked to CUPTI calls it.
penstock::recorder::CuptiResult cuptiSubscribe(penstock::recorder::CuptiSubscriber*,
                                               penstock::recorder::CuptiCallback, void*);
int start_profiler();
}

int start_profiler() {
  static penstock::recorder::CuptiSubscriber subscriber = nullptr;
  return cuptiSubscribe(&subscriber, [](void*, int, std::uint32_t, const void*) {}, nullptr);
}
