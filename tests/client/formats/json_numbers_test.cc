// The numbers of msProbe's JSON, to the last bit.
#include <bit>
#include <cstdint>
#include <cstdlib>
#include <limits>
#include <string>

#include <gtest/gtest.h>

#include "client/formats/msprobe_json.h"

namespace statcollect::client::formats {
namespace {

std::uint64_t BitsOf(double number) { return std::bit_cast<std::uint64_t>(number); }

// What is read as the mean of a tensor.
double Read(const std::string& number) {
  const std::string text =
      R"({"data": {"Functional.relu.0.forward": {"output": [{"type": "torch.Tensor", )"
      R"("dtype": "torch.float32", )"
      R"("shape": [2], "Mean": )" +
      number + "}]}}}";
  MemorySource source("dump.json", text);
  Tally tally;
  double mean = -1;
  const Status read = ReadMsProbeDump(source, &tally, [&](const MsProbeTensor& tensor) {
    mean = tensor.mean.value();
    return Status::Ok();
  });
  EXPECT_TRUE(read.ok()) << read.message();
  return mean;
}

TEST(JsonNumbers, AreTheNearestDouble) {
  for (const std::string& number : {std::string("0"),
                                    std::string("-0"),
                                    std::string("0.0"),
                                    std::string("-0.0"),
                                    std::string("7"),
                                    std::string("-12345678901234567890"),
                                    std::string("18446744073709551616"),
                                    std::string("0.1"),
                                    std::string("-1.7976931348623157e308"),
                                    std::string("2.2250738585072014e-308"),
                                    std::string("4.9406564584124654e-324"),
                                    std::string("2.4703282292062327e-324"),
                                    std::string("2.4703282292062328e-324"),
                                    std::string("1e-400"),
                                    std::string("-1E-400"),
                                    std::string("1e-9999"),
                                    std::string("9007199254740993"),
                                    std::string("9007199254740993.00001"),
                                    std::string("123456789012345678901234567890e-20"),
                                    "0." + std::string(400, '0') + "1",
                                    "0." + std::string(30, '0'),
                                    "-0." + std::string(30, '0'),
                                    "0." + std::string(30, '0') + "1",
                                    "0." + std::string(30, '0') + "e5",
                                    "1." + std::string(900, '0') + "1"})
    EXPECT_EQ(BitsOf(Read(number)), BitsOf(std::strtod(number.c_str(), nullptr))) << number;
}

TEST(JsonNumbers, MayBeMissingOrInfinite) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  EXPECT_NE(Read("NaN"), Read("NaN"));
  EXPECT_EQ(Read("Infinity"), kInfinity);
  EXPECT_EQ(Read("-Infinity"), -kInfinity);
  EXPECT_EQ(Read("Inf"), kInfinity);
  EXPECT_EQ(Read("9e308"), kInfinity) << "as Python reads it";
}

}  // namespace
}  // namespace statcollect::client::formats
