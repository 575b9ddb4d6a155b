#include "doctor/report/trace_report.hpp"

#include <gtest/gtest.h>
#include <nlohmann/json.hpp>

#include <string>

namespace penstock::cli {
namespace {

using Json = nlohmann::ordered_json;

Json line_of(const std::string& function) {
  const Json place = place_json(function);
  EXPECT_EQ(place.at("function"), function);
  return {place.at("file"), place.at("line")};
}

TEST(PlaceJson, HasTheFileAndTheLine) {
  EXPECT_EQ(line_of("train.py(14): to_gpu"), Json({"train.py", 14}));
  EXPECT_EQ(line_of("/a (1)/b(2).py(30): f(int): x(7): y"), Json({"/a (1)/b(2).py", 30}));
  EXPECT_EQ(line_of("copy.cpp(12): send(Batch&)"), Json({"copy.cpp", 12}));
}

TEST(PlaceJson, IsNullWithoutALine) {
  const Json nothing{nullptr, nullptr};
  for (const char* const function : {"", "program: send(Batch&)", "program+0x12ab", "(12): main", "a(12)",
                                     "a(", "a(): b", "a(-1): b", "a(99999999999999999999): b"}) {
    EXPECT_EQ(line_of(function), nothing) << function;
  }
}

}  // namespace
}  // namespace penstock::cli
