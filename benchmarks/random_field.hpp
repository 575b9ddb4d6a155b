#pragma once

#include <penstock/data/readers.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace penstock::bench {

/// Random bytes, one field of `count` samples. Pages are touched by several threads.
inline FieldReaderPtr make_field(std::string name, DType dtype, Shape shape, std::size_t count) {
  Field field{.name = std::move(name), .dtype = dtype, .shape = std::move(shape)};
  const std::size_t words = count * field.sample_bytes() / 8;
  auto values = std::make_shared<std::unique_ptr<std::uint64_t[]>>(new std::uint64_t[words]);
  std::vector<std::thread> threads;
  const std::size_t team = std::max(1U, std::thread::hardware_concurrency());
  for (std::size_t t = 0; t < team; ++t) {
    threads.emplace_back([&, t] {
      std::mt19937_64 random(t + 1);
      for (std::size_t i = words * t / team; i < words * (t + 1) / team; ++i) (*values)[i] = random();
    });
  }
  for (std::thread& thread : threads) thread.join();
  return read_array(std::move(field), std::as_bytes(std::span(values->get(), words)), values);
}

}  // namespace penstock::bench
