#include <penstock/core/error.hpp>
#include <penstock/device/device.hpp>
#include <penstock/memory/pool.hpp>
#include <penstock/transfer/transfer_engine.hpp>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <vector>

int main() {
  const auto device = penstock::Device::open("host");
  penstock::TransferEngine engine(device);
  auto pool = penstock::make_device_pool(device, {.budget_bytes = std::size_t{64} << 20});

  std::vector<unsigned char> sent(std::size_t{9} << 20);
  for (std::size_t i = 0; i < sent.size(); ++i) sent[i] = static_cast<unsigned char>(i * 2654435761U >> 13);
  std::vector<unsigned char> returned(sent.size(), 0xEE);

  const auto there = pool.allocate(sent.size());
  engine.copy(there.data(), sent.data(), sent.size()).synchronize();
  engine.copy(returned.data(), there.data(), sent.size()).synchronize();
  if (std::memcmp(sent.data(), returned.data(), sent.size()) != 0) {
    std::puts("the bytes that came back differ");
    return 1;
  }

  try {
    engine.copy(there.data(), nullptr, 1).synchronize();
    std::puts("a null source was accepted");
    return 1;
  } catch (const penstock::InvalidArgument&) {
    std::puts("outside: works");
  }
}
