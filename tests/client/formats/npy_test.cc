// Files of NumPy: the statistics are those that the agent computes, and what is no array of numbers
// is refused.
#include "client/formats/npy.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "agent/stats/stats.h"
#include "client/formats/mindspore_tensor.h"
#include "common/endian.h"
#include "common/names.h"

namespace statcollect::client::formats {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

std::string File(const std::string& header, const std::string& data, char version = 1) {
  std::string file = std::string("\x93NUMPY") + version + '\0';
  if (version == 1)
    AppendLittleEndian(&file, static_cast<std::uint16_t>(header.size()));
  else
    AppendLittleEndian(&file, static_cast<std::uint32_t>(header.size()));
  return file + header + data;
}

std::string Header(const std::string& descr, const std::string& shape, bool fortran = false) {
  return "{'descr': '" + descr + "', 'fortran_order': " + (fortran ? "True" : "False") +
         ", 'shape': " + shape + ", }      \n";
}

Result<TensorStats> ReadNpy(const std::string& file, DType as = DType::kUnspecified) {
  MemorySource source("a.npy", file);
  const auto header = ReadNpyHeader(source);
  if (!header.ok()) return header.status();
  return ReadStats(source, *header, as == DType::kUnspecified ? header->dtype : as, {});
}

TensorStats OfEngine(const std::string& data, DType dtype, std::vector<std::int64_t> shape) {
  std::uint32_t samples = 0;
  return stats::ComputeCpu({.data = data.data(), .dtype = dtype, .shape = shape, .strides = {}}, {},
                           {}, &samples);
}

// Bytes that are numbers of every kind; the count is beyond two stripes of the engine.
std::string Numbers(std::size_t bytes) {
  std::string data(bytes, '\0');
  std::uint32_t state = 1;
  for (char& byte : data) byte = static_cast<char>((state = state * 1664525 + 1013904223) >> 24);
  return data;
}

TEST(Npy, StatisticsAreThoseOfTheAgentBitByBit) {
  for (const auto& [descr, dtype] : {std::pair("<f2", DType::kF16),
                                     {"<f4", DType::kF32},
                                     {"<f8", DType::kF64},
                                     {"<V2", DType::kBf16},
                                     {"|b1", DType::kBool},
                                     {"|i1", DType::kI8},
                                     {"<i2", DType::kI16},
                                     {"<i4", DType::kI32},
                                     {"<i8", DType::kI64},
                                     {"|u1", DType::kU8},
                                     {"<u2", DType::kU16},
                                     {"<u4", DType::kU32},
                                     {"<u8", DType::kU64},
                                     {"<c8", DType::kC64},
                                     {"<c16", DType::kC128}}) {
    for (const std::int64_t count : {0, 1, 3000, 600'000}) {
      const std::string data = Numbers(static_cast<std::size_t>(count) * DTypeBytes(dtype));
      const auto read = ReadNpy(File(Header(descr, "(" + std::to_string(count) + ",)"), data));
      ASSERT_TRUE(read.ok()) << read.status().message();
      EXPECT_EQ(*read, OfEngine(data, dtype, {count})) << descr << " x " << count;
    }
  }
}

TEST(Npy, OrderAndBytesOfAFileDoNotMatter) {
  std::vector<float> rows(6 * 500 * 3);
  std::iota(rows.begin(), rows.end(), -4000.f);
  std::vector<float> columns(rows.size());
  for (std::size_t i = 0; i < 6; ++i)
    for (std::size_t j = 0; j < 500; ++j)
      for (std::size_t k = 0; k < 3; ++k)
        columns[i + 6 * (j + 500 * k)] = rows[(i * 500 + j) * 3 + k];
  const auto bytes = [](const std::vector<float>& values) {
    return std::string(reinterpret_cast<const char*>(values.data()), 4 * values.size());
  };
  std::string swapped = bytes(rows);
  for (std::size_t i = 0; i < swapped.size(); i += 4) std::reverse(&swapped[i], &swapped[i] + 4);
  const TensorStats expected = OfEngine(bytes(rows), DType::kF32, {6, 500, 3});
  EXPECT_EQ(*ReadNpy(File(Header("<f4", "(6, 500, 3)"), bytes(rows))), expected);
  EXPECT_EQ(*ReadNpy(File(Header("<f4", "(6, 500, 3)", true), bytes(columns))), expected);
  EXPECT_EQ(*ReadNpy(File(Header(">f4", "(6L, 500L, 3L)"), swapped)), expected);
  EXPECT_EQ(*ReadNpy(File(Header("<f4", "(6, 500, 3)"), bytes(rows), 2)), expected);
  EXPECT_EQ(*ReadNpy(File(Header("<f4", "(6, 500, 3)"), bytes(rows), 3)), expected);
}

TEST(Npy, Bfloat16ThatWasSavedAsFloat32IsBfloat16Again) {
  const std::uint32_t bits[] = {0x3f800000, 0xc1200000, 0x7f800000, 0x00010000};
  const std::uint16_t narrow[] = {0x3f80, 0xc120, 0x7f80, 0x0001};
  const std::string wide(reinterpret_cast<const char*>(bits), sizeof bits);
  const std::string expected(reinterpret_cast<const char*>(narrow), sizeof narrow);
  for (const bool fortran : {false, true}) {
    const auto read = ReadNpy(File(Header("<f4", "(2, 2)", fortran), wide), DType::kBf16);
    ASSERT_TRUE(read.ok()) << read.status().message();
    EXPECT_EQ(read->max, 1);
    EXPECT_EQ(read->pos_inf, 1u);
    if (!fortran) {
      EXPECT_EQ(*read, OfEngine(expected, DType::kBf16, {2, 2}));
    }
  }
  const std::string bits_of_bool("\1\0\1", 3);
  EXPECT_EQ(*ReadNpy(File(Header("|u1", "(3,)"), bits_of_bool), DType::kBool),
            OfEngine(bits_of_bool, DType::kBool, {3}));
  EXPECT_EQ(ReadNpy(File(Header("|u1", "(1,)"), "\2"), DType::kBool).status().code(),
            Code::kFailedPrecondition);
  const float pi = 3.14159f;
  const std::string other(reinterpret_cast<const char*>(&pi), 4);
  EXPECT_EQ(ReadNpy(File(Header("<f4", "()"), other), DType::kBf16).status().code(),
            Code::kFailedPrecondition);
}

TEST(Npy, WhatIsNoArrayOfNumbersIsRefusedWithAReason) {
  const std::string four(4, '\0');
  const std::string deep = "(" + [] {
    std::string ones;
    for (int i = 0; i < 65; ++i) ones += "1,";
    return ones;
  }() + ")";
  for (const auto& [file, found] : {
           std::pair<std::string, const char*>("", "found another kind of file"),
           {"\x93NUMP", "found another kind of file"},
           {std::string("PK\3\4aaaaaaaaaaaa"), "found another kind of file"},
           {File(Header("<f4", "()"), four, 9), "found version 9.0"},
           {File(Header("<f4", "()"), four).substr(0, 20), "found a header that was cut"},
           {std::string("\x93NUMPY\2\0\xff\xff\xff\xff", 12), "found a header of 4294967295 bytes"},
           {File(Header("|O", "(2,)"), four), "found an array of Python objects"},
           {File("{'descr': [('a', '<f4')], 'fortran_order': False, 'shape': (1,)}", four),
            "an array of records"},
           {File("", four), "found a header that is no dictionary"},
           {File("{'descr': '<f4', 'shape': ()}", four), "found a header that is not complete"},
           {File("{'descr': '<f4', 'fortran_order': exit(), 'shape': ()}", four),
            "found a header without an order"},
           {File("{'descr': '<f4', 'descr': '<f8', 'fortran_order': False, 'shape': ()}", four),
            "a header with 'descr'"},
           {File(Header("<f4", "()") + "__import__('os')", four),
            "found a header that is not complete"},
           {File("{'descr': '<f4', 'fortran_order': False, 'shape': (", four),
            "found a shape that does not end"},
           {File(Header("<f4", "(-1,)"), four), "found shape (-1,)"},
           {File(Header("<f4", "(2, x)"), four), "found shape (2, x)"},
           {File(Header("<f4", "(99999999999999999999,)"), four),
            "found shape (99999999999999999999,)"},
           {File(Header("<f4", "(4294967296, 4294967296)"), four),
            "found shape (4294967296, 4294967296)"},
           {File(Header("<f4", deep), four), "found shape (1,1"},
           {File(Header("<f4", "(2,)"), four), "found 4 bytes of elements; expected 8"},
           {File(Header("<f8", "(1000000000000,)"), four),
            "found 4 bytes of elements; expected 8000000000000"},
           {File(Header("<f8", "(1000, 1000)", true), four),
            "found 4 bytes of elements; expected 8000000"},
           {File(Header("<f8", "(1000000, 1000000)", true), four),
            "elements that are not row by row"},
           {File(Header("<f4", "(1,)"), four + "x"),
            "found more than 4 bytes of elements; expected 4"},
       }) {
    const Status status = ReadNpy(file).status();
    EXPECT_EQ(status.code(), Code::kInvalidArgument) << found;
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("a.npy"), HasSubstr(found), HasSubstr("; expected ")))
        << found;
  }
  const std::string texts = File(Header("<U5", "(1,)"), four);
  MemorySource text("a.npy", texts);
  const auto header = ReadNpyHeader(text);
  ASSERT_TRUE(header.ok());
  EXPECT_EQ(header->dtype, DType::kUnspecified) << "counted, and left out";
}

TEST(MindSporeTensorName, SaysWhatTheFileHolds) {
  const auto older =
      ParseMindSporeTensorName("Add.Default_Add-op1.3.2.1624.output.0.DefaultFormat.npy");
  ASSERT_TRUE(older);
  EXPECT_EQ(older->op_type, "Add");
  EXPECT_EQ(older->op_name, "Default_Add-op1");
  EXPECT_EQ(older->task, 3u);
  EXPECT_EQ(older->timestamp, 1624u);
  EXPECT_EQ(older->kind, Kind::kOutput);
  EXPECT_EQ(older->slot, 0u);
  EXPECT_EQ(older->dtype, "");
  const auto newer =
      ParseMindSporeTensorName("MatMul.Net.fc1.MatMul-op9.0.0.1.input.12.ND.bfloat16.npy");
  ASSERT_TRUE(newer);
  EXPECT_EQ(newer->op_name, "Net.fc1.MatMul-op9");
  EXPECT_EQ(newer->kind, Kind::kInput);
  EXPECT_EQ(newer->slot, 12u);
  EXPECT_EQ(newer->dtype, "bfloat16");
  for (const char* other :
       {"", ".npy", "x.npy", "Add.Default_Add-op1.3.2.1624.output.0.DefaultFormat.csv",
        "0_x_float32_1.npy", "Add.op.a.2.1.output.0.ND.npy", "Add.op.3.2.1.output.x.ND.npy",
        "Add.op.3.2.1.outputs.0.ND.npy", "Add.3.2.1.output.0.ND.npy", ".op.3.2.1.output.0.ND.npy",
        "Add..3.2.1.output.0.ND.npy", "Add.op.3.2.1.output.9999999.ND.npy"})
    EXPECT_FALSE(ParseMindSporeTensorName(other)) << other;
}

}  // namespace
}  // namespace statcollect::client::formats
