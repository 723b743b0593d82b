#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "server/query/zoom/align.h"
#include "server/query/zoom/compare_calls.h"
#include "server/query/zoom/document.h"

namespace statcollect::query {
namespace {

EventRecord Part(std::map<std::string, std::string> fields, std::uint64_t step = 3) {
  fields.insert({{"module", "blocks.1.ln2"}, {"class", "LayerNorm"}, {"phase", "forward"}});
  EventRecord event;
  event.kind = "zoom";
  event.step = step;
  event.fields = std::move(fields);
  return event;
}

// A call whose tensors have the values that the test gives them.
class Call {
 public:
  explicit Call(const std::string& lines) {
    documents_ = ReadZoomDocuments(std::vector<EventRecord>{Part({{"00", lines}})});
    layout_.dtype = DType::kF32;
    layout_.shape = {4};
  }
  // `l2`: its size, on which the distance is based without sketches.
  void Set(const ZoomRef& ref, std::uint64_t hash, double l2 = 1) {
    TensorStats& stats = stats_[ref];
    stats.numel = 4;
    stats.has_finite = true;
    stats.hash = hash;
    stats.l2 = l2;
  }
  ZoomSide Side() {
    return {.document = &documents_.at(0),
            .value = [this](const ZoomRef& ref) -> const Observation* {
              const auto stats = stats_.find(ref);
              if (stats == stats_.end()) return nullptr;
              Observation& seen = seen_[ref];
              seen.layout = &layout_;
              seen.stats = &stats->second;
              return &seen;
            }};
  }
  const ZoomDocument& document() const { return documents_.at(0); }

 private:
  std::vector<ZoomDocument> documents_;
  Layout layout_;
  std::map<ZoomRef, TensorStats> stats_;
  std::map<ZoomRef, Observation> seen_;
};

ZoomRef In(std::uint32_t number) { return {.of_input = true, .number = number}; }
ZoomRef Result(std::uint32_t number) { return {.number = number}; }

constexpr char kIn[] = "in|0|input 0|f32[4]~";

TEST(ZoomDocument, LinesOfAllPartsAreReadInOrderAndWhatIsDamagedIsCounted) {
  const std::vector<EventRecord> events = {
      Part({{"part", "1"},
            {"parts", "3"},
            {"00", "op|1|aten.b|v|m.py:2|f||f32[4]|self^&0.0:f32[4]"}}),
      Part({{"part", "0"},
            {"parts", "3"},
            {"00", std::string(kIn) + "nonsense"},
            {"01",
             "op|0|aten.a|i|m.py:1|f|01-02|f32[4];=3|self^&in0:f32[4]|list^[&in0:f32[4], "
             "2]|eps^0.1"}}),
      Part({{"part", "0"}, {"00", "op|0|aten.c|||||"}}, 4)};
  const auto documents = ReadZoomDocuments(events);
  ASSERT_EQ(documents.size(), 2u);
  const ZoomDocument& first = documents[0];
  EXPECT_EQ(first.step, 3u);
  EXPECT_EQ(first.unreadable, 2u);  // a line, and a part that is missing
  ASSERT_EQ(first.operators.size(), 2u);
  const ZoomOperator& a = first.operators[0];
  EXPECT_TRUE(a.in_place && !a.view && first.operators[1].view);
  EXPECT_EQ(a.results, (std::vector<std::string>{"f32[4]", "=3"}));
  ASSERT_EQ(a.arguments.size(), 3u);
  EXPECT_EQ(a.arguments[0].refs, std::vector<ZoomRef>{In(0)});
  EXPECT_EQ(a.arguments[1].value, "[f32[4], 2]");
  EXPECT_EQ(a.arguments[2].value, "0.1");
  EXPECT_EQ(RecordedAs(first, Result(1)),
            std::pair(std::string("blocks.1.ln2/#1 aten.b"), std::string("0")));
  EXPECT_EQ(RecordedAs(first, In(0)), std::pair(std::string("blocks.1.ln2/in0"), std::string("0")));
}

TEST(ZoomDocument, AnyTextInAFieldIsNoFault) {
  for (const std::string text :
       {"op", "op|", "op|0", "op|-1|a|b|c|d|e|f", "op|99999999999|a|||||", "in|0",
        "op|0|a||||||self^&", "op|0|a||||||self^&in", "op|0|a||||||&1.=&1.x", "~~"}) {
    const auto documents = ReadZoomDocuments(std::vector<EventRecord>{Part({{"00", text}})});
    ASSERT_EQ(documents.size(), 1u);
  }
}

TEST(ZoomCompare, AnOperatorWithAnotherArgumentIsNamedWithIt) {
  const std::string op = "op|0|aten.native_layer_norm||m.py:41|f||f32[4]|input^&in0:f32[4]|eps^";
  Call a(kIn + op + "1e-05"), b(kIn + op + "0.001");
  for (Call* one : {&a, &b}) one->Set(In(0), 7);
  a.Set(Result(0), 1, 1);
  b.Set(Result(0), 2, 1.0000001);
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kOperator);
  EXPECT_TRUE(found.inputs_equal);
  ASSERT_EQ(found.differences.size(), 1u);
  EXPECT_EQ(found.differences[0].name, "eps");
  EXPECT_EQ(found.differences[0].b, "0.001");
}

TEST(ZoomCompare, ASmallDifferenceOfEqualOperatorsIsRounding) {
  const std::string op = "op|0|aten.mm||m.py:41|f||f32[4]|self^&in0:f32[4]";
  Call a(kIn + op), b(kIn + op);
  for (Call* one : {&a, &b}) one->Set(In(0), 7);
  a.Set(Result(0), 1, 1);
  b.Set(Result(0), 2, 1.0000001);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kRounding);
  b.Set(Result(0), 2, 1.1);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kOperator);
  b.Set(Result(0), 1, 1);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kIdentical);
}

TEST(ZoomCompare, AnOperatorThatOneRunLacksIsABlockBetweenLinesThatAgree) {
  const std::string first = "op|0|aten.mm||m.py:1|f||f32[4]|self^&in0:f32[4]~";
  Call a(kIn + first + "op|1|aten.masked_fill||m.py:2|f||f32[4]|self^&0.0:f32[4]~" +
         "op|2|aten._softmax||m.py:3|f||f32[4]|self^&1.0:f32[4]");
  Call b(kIn + first + "op|1|aten._softmax||m.py:3|f||f32[4]|self^&0.0:f32[4]");
  for (Call* one : {&a, &b}) {
    one->Set(In(0), 7);
    one->Set(Result(0), 8);
  }
  a.Set(Result(1), 9, 2);
  a.Set(Result(2), 10, 3);
  b.Set(Result(1), 11, 4);
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kBlock);
  ASSERT_EQ(found.a.size(), 1u);
  EXPECT_EQ(found.a[0]->name, "aten.masked_fill");
  EXPECT_TRUE(found.b.empty());
  EXPECT_EQ(std::pair(found.after_a, found.before_a),
            std::pair(std::string("m.py:1"), std::string("m.py:3")));
}

TEST(ZoomCompare, AnotherTensorAsAnArgumentIsNamed) {
  const std::string two = std::string(kIn) + "in|1|input 1|f32[4]~";
  const std::string op = "op|0|aten.sigmoid||m.py:1|f||f32[4]|self^";
  Call a(two + op + "&in0:f32[4]"), b(two + op + "&in1:f32[4]");
  for (Call* one : {&a, &b}) {
    one->Set(In(0), 7, 1);
    one->Set(In(1), 8, 2);
  }
  a.Set(Result(0), 9, 1);
  b.Set(Result(0), 10, 2);
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kOperator);
  ASSERT_EQ(found.differences.size(), 1u);
  EXPECT_EQ(found.differences[0].a, "input 0");
  EXPECT_EQ(found.differences[0].b, "input 1");
}

TEST(ZoomCompare, InputsThatDifferAlreadyAreSaidUnlessAnOperatorMakesThatMuchLarger) {
  const std::string op = "op|0|aten.exp||m.py:1|f||f32[4]|self^&in0:f32[4]";
  Call a(kIn + op), b(kIn + op);
  a.Set(In(0), 1, 1);
  b.Set(In(0), 2, 1.01);
  a.Set(Result(0), 3, 1);
  b.Set(Result(0), 4, 1.02);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kInputs);
  b.Set(Result(0), 4, 9);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kOperator);
  // Inputs that differ by rounding come from other kernels.
  b.Set(In(0), 2, 1.0000001);
  b.Set(Result(0), 4, 1.0000002);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kRounding);
}

TEST(ZoomDocument, ABackwardPassHasNamesOfItsOwnAndSaysWhatItHandsOn) {
  EventRecord event =
      Part({{"00", std::string(kIn) + "op|0|aten.mm||m.py:1|f||f32[4]|self^&in0:f32[4]~"
                                      "out|gradient of input 0|&0.0~out|gradient of w|&in0~"
                                      "out|nothing|0.0~out|x|&y"}});
  event.fields["phase"] = "backward";
  const auto documents = ReadZoomDocuments(std::vector<EventRecord>{event});
  ASSERT_EQ(documents.size(), 1u);
  ASSERT_EQ(documents[0].outputs.size(), 2u);
  EXPECT_EQ(documents[0].outputs[0].label, "gradient of input 0");
  EXPECT_EQ(documents[0].outputs[0].ref, Result(0));
  EXPECT_EQ(documents[0].outputs[1].ref, In(0));
  EXPECT_EQ(documents[0].unreadable, 2u);
  EXPECT_EQ(RecordedAs(documents[0], Result(0)),
            std::pair(std::string("blocks.1.ln2/backward #0 aten.mm"), std::string("0")));
  EXPECT_EQ(RecordedAs(documents[0], In(0)).first, "blocks.1.ln2/backward in0");
}

TEST(ZoomCompare, WhatIsHandedOnBeforeTheEndIsComparedToo) {
  // The gradient of a weight comes from another operator; the last operator agrees.
  const std::string last = "op|1|aten.neg||m.py:2|f||f32[4]|self^&in0:f32[4]~";
  const std::string outs = "out|gradient of w|&0.0~out|gradient of input 0|&1.0";
  Call a(kIn + std::string("op|0|aten.mm||m.py:1|f||f32[4]|self^&in0:f32[4]~") + last + outs);
  Call b(kIn + std::string("op|0|aten.bmm||m.py:1|f||f32[4]|self^&in0:f32[4]~") + last + outs);
  for (Call* one : {&a, &b}) {
    one->Set(In(0), 7);
    one->Set(Result(1), 9);
  }
  a.Set(Result(0), 1, 1);
  b.Set(Result(0), 2, 1.5);
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kBlock);
  ASSERT_EQ(std::pair(found.a.size(), found.b.size()), std::pair(std::size_t{1}, std::size_t{1}));
  EXPECT_EQ(found.b[0]->name, "aten.bmm");
  b.Set(Result(0), 2, 1.0000001);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kRounding);
}

TEST(ZoomCompare, AGradientThatOnlyOneRunHandsOnIsNamed) {
  const std::string op = "op|0|aten.mm||m.py:1|f||f32[4]|self^&in0:f32[4]~out|gradient of x|&0.0";
  Call a(kIn + op + "~out|gradient of w|&0.0"), b(kIn + op),
      c(kIn + op + "~out|gradient of v|&0.0");
  Call parts(kIn + op + "~out|gradient of x (2)|&0.0");
  for (Call* one : {&a, &b, &c, &parts}) {
    one->Set(In(0), 7);
    one->Set(Result(0), 9);
  }
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kBlock);
  ASSERT_EQ(found.differences.size(), 1u);
  EXPECT_EQ(found.differences[0].name, "gradient of w");
  EXPECT_EQ(found.differences[0].b, "missing");
  // Other names are no difference, nor are sums of other parts.
  EXPECT_EQ(CompareCalls(a.Side(), c.Side()).outcome, ZoomOutcome::kIdentical);
  EXPECT_EQ(CompareCalls(b.Side(), parts.Side()).outcome, ZoomOutcome::kIdentical);
}

TEST(ZoomCompare, AGradientThatOneSumLacksIsTheBlockThatComputesIt) {
  const std::string in = "in|0|gradient of output 0|f32[4]~";
  const std::string mul = "op|0|aten.mul||m.py:1|f||f32[4]|self^&in0:f32[4]~";
  const std::string pow = "op|1|aten.pow||m.py:2|f||f32[4]|self^&0.0:f32[4]~";
  const std::string sum = "|autograd.sum||m.py:3|f||f32[4]|0^&in0:f32[4]|1^&0.0:f32[4]";
  Call a(in + mul + pow + "op|2" + sum + "|2^&1.0:f32[4]");
  Call b(in + mul + "op|1" + sum);
  for (Call* one : {&a, &b}) {
    one->Set(In(0), 7);
    one->Set(Result(0), 8);
  }
  a.Set(Result(1), 9);
  a.Set(Result(2), 10, 1);
  b.Set(Result(1), 11, 1.5);
  const ZoomComparison found = CompareCalls(a.Side(), b.Side());
  EXPECT_EQ(found.outcome, ZoomOutcome::kBlock);
  ASSERT_EQ(found.a.size(), 1u);
  EXPECT_EQ(found.a[0]->place, "m.py:2");
  EXPECT_TRUE(found.b.empty());
  EXPECT_GT(found.distance, 0.1) << "of the sums";
  EXPECT_LT(found.distance, 1);
}

TEST(ZoomCompare, ANumberInPlaceOfATensorIsAnotherWayToComputeIt) {
  const std::string first = "op|0|aten.mul||m.py:1|f||f32[4]|self^&in0:f32[4]|other^";
  const std::string second = "op|1|aten.mul||m.py:1|f||f32[4]|self^&0.0:f32[4]|other^";
  Call a(kIn + first + "2~" + second + "&in0:f32[4]");
  Call b(kIn + first + "&in0:f32[4]~" + second + "2");
  for (Call* one : {&a, &b}) {
    one->Set(In(0), 7);
    one->Set(Result(1), 9);
  }
  a.Set(Result(0), 1, 1);
  b.Set(Result(0), 2, 1.5);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kRounding);
  b.Set(Result(1), 10, 2);
  EXPECT_EQ(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kOperator);
}

TEST(ZoomCompare, TheSameHandedOnByOperatorsInAnotherOrderIsRounding) {
  const std::string exp = "|aten.exp||m.py:1|f||f32[4]|self^&in0:f32[4]~";
  const std::string neg = "|aten.neg||m.py:2|f||f32[4]|self^&in0:f32[4]~";
  Call a(kIn + std::string("op|0") + exp + "op|1" + neg + "out|x|&0.0~out|y|&1.0");
  Call b(kIn + std::string("op|0") + neg + "op|1" + exp + "out|x|&1.0~out|y|&0.0");
  for (Call* one : {&a, &b}) one->Set(In(0), 7);
  a.Set(Result(0), 1, 1);
  a.Set(Result(1), 2, 2);
  b.Set(Result(0), 2, 2);
  b.Set(Result(1), 1, 1);
  EXPECT_LE(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kRounding);
  b.Set(Result(1), 3, 1.5);
  EXPECT_GE(CompareCalls(a.Side(), b.Side()).outcome, ZoomOutcome::kOperator);
}

TEST(ZoomAlign, OperatorsOfOneNameArePairedByTheirShapes) {
  const std::string of = "op|0|aten.view||m.py:1|f||";
  Call a(of + "f32[4]|self^&in0:f32[4]~op|1|aten.view||m.py:2|f||f32[2,2]|self^&in0:f32[4]");
  Call b("op|0|aten.view||m.py:2|f||f32[2,2]|self^&in0:f32[4]");
  const auto pairs =
      AlignOperators({a.document().operators, {0, 0}}, {b.document().operators, {0}});
  ASSERT_EQ(pairs.size(), 1u);
  EXPECT_EQ(pairs[0], std::pair(std::size_t{1}, std::size_t{0}));
}

}  // namespace
}  // namespace statcollect::query
