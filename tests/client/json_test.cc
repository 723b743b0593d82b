#include "proto/json.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "client/render/flatten.h"
#include "statcollect/v1/ingest.pb.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect {
namespace {

v1::SeriesPoint Point() {
  v1::SeriesPoint point;
  point.set_run("base");
  point.set_rank(1);
  point.set_step(std::numeric_limits<std::uint64_t>::max());
  point.set_kind(v1::KIND_GRAD_OUTPUT);
  point.set_activation("a,\"b\"\x1b\u202e");
  point.set_mode("train");
  v1::ObservationSide& stats = *point.mutable_stats();
  stats.set_min(std::nan(""));
  stats.set_max(std::numeric_limits<double>::infinity());
  stats.set_mean(0.1);
  stats.set_nan(0);
  stats.set_pos_inf(0);
  stats.set_neg_inf(0);
  stats.set_zero(0);
  stats.set_numel(0);
  stats.set_dtype("f32");
  stats.add_shape(4);
  stats.add_shape(128);
  stats.set_hash(0xabc);
  return point;
}

TEST(Json, FollowsItsRules) {
  EXPECT_EQ(DumpJson(ToJson(Point())), R"({
  "run": "base",
  "rank": 1,
  "step": 18446744073709551615,
  "micro_batch": 0,
  "kind": "grad_output",
  "activation": "a,\"b\"\u001b\u202e",
  "output_path": "",
  "call": 0,
  "mode": "train",
  "stats": {
    "min": "NaN",
    "max": "Infinity",
    "mean": 0.1,
    "std": null,
    "l1": null,
    "l2": null,
    "nan": 0,
    "pos_inf": 0,
    "neg_inf": 0,
    "zero": 0,
    "numel": 0,
    "dtype": "f32",
    "shape": [
      4,
      128
    ],
    "hash": "0x0000000000000abc",
    "value": null,
    "inf": null,
    "neg": null,
    "pos": null,
    "hash_kind": "",
    "untrusted": [],
    "place": ""
  },
  "ranks": []
})");
}

TEST(Json, WritesAbsentMessagesAndUnspecifiedValuesAsNull) {
  const auto json = ToJson(v1::DiffReport());
  EXPECT_TRUE(json["first"].is_null());
  EXPECT_TRUE(json["steps"].is_null());
  EXPECT_TRUE(json["verdict"].is_null());
  EXPECT_TRUE(json["diverged"].is_array());
}

TEST(Json, WritesEnumerationsWithoutTheirPrefix) {
  v1::Divergence d;
  d.set_reason(v1::REASON_MISSING_IN_A);
  d.set_distance_kind(v1::DISTANCE_KIND_SKETCH);
  d.set_stage(static_cast<v1::Stage>(99));
  const auto json = ToJson(d);
  EXPECT_EQ(json["reason"], "missing_in_a");
  EXPECT_EQ(json["distance_kind"], "sketch");
  EXPECT_EQ(json["stage"], 99);
  EXPECT_EQ(EnumText(*v1::DType_descriptor(), v1::DTYPE_F8E4M3), "f8e4m3");
}

TEST(Json, WritesMapsAsObjectsAndBytesAsHex) {
  v1::Hello hello;
  hello.set_session_id(std::string("\x00\xff\x10", 3));
  (*hello.mutable_config())["b"] = "2";
  (*hello.mutable_config())["a"] = "1";
  const auto json = ToJson(hello);
  EXPECT_EQ(json["session_id"], "00ff10");
  EXPECT_EQ(json["config"].dump(), R"({"a":"1","b":"2"})");
}

TEST(Flatten, MakesOneColumnAField) {
  google::protobuf::RepeatedPtrField<v1::SeriesPoint> points;
  *points.Add() = Point();
  EXPECT_EQ(client::FlattenRecords(points, {"rank", "step"}).ToCsv(),
            "rank,step,run,micro_batch,kind,activation,output_path,call,mode,"
            "min,max,mean,std,l1,l2,nan,pos_inf,neg_inf,zero,numel,dtype,shape,hash,value,inf,neg,"
            "pos,hash_kind,untrusted,place,ranks\r\n"
            "1,18446744073709551615,base,0,grad_output,\"a,\"\"b\"\"\x1b\u202e\",,0,train,"
            "NaN,Infinity,0.1,,,,0,0,0,0,0,f32,\"[4,128]\",0x0000000000000abc,,,,,,[],,[]\r\n");
}

TEST(Flatten, NamesTheColumnsOfBothSidesAndLeavesAbsentOnesEmpty) {
  google::protobuf::RepeatedPtrField<v1::Divergence> rows;
  v1::Divergence& row = *rows.Add();
  row.mutable_b()->set_min(2);
  const std::string csv = client::FlattenRecords(rows).ToCsv();
  EXPECT_NE(csv.find(",a_min,"), std::string::npos) << csv;
  EXPECT_NE(csv.find(",b_min,"), std::string::npos) << csv;
  const std::string header = csv.substr(0, csv.find("\r\n"));
  const std::string line = csv.substr(csv.find("\r\n") + 2);
  EXPECT_EQ(std::count(header.begin(), header.end(), ','),
            std::count(line.begin(), line.end(), ','));
  EXPECT_NE(line.find(",2.0,"), std::string::npos) << line;
}

TEST(Flatten, HasItsHeaderEvenWithoutRecords) {
  EXPECT_EQ(client::FlattenRecords(v1::ListScalarsResponse().records()).ToCsv(),
            "run,rank,step,micro_batch,name,value,ranks\r\n");
}

}  // namespace
}  // namespace statcollect
