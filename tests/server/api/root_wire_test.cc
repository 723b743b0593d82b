// The root of a diff on the wire.
#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "server/api/convert.h"
#include "statcollect/v1/query.pb.h"

namespace statcollect {
namespace {

using api::ToWire;
using ::testing::ElementsAre;

query::Divergence Row() {
  query::Divergence row{.step = 5, .micro_batch = 2, .rank = 3};
  row.rank_b = 1;
  row.stage = query::Stage::kForward;
  row.kind = Kind::kOutput;
  row.activation = "blocks.2.ln";
  row.output_path = "0";
  row.call = 4;
  row.reason = query::Reason::kNumeric;
  row.distance = 1e-5;
  row.distance_low = 5e-6;
  row.distance_high = 2e-5;
  row.distance_kind = query::DistanceKind::kSketch;
  row.tolerance = 1e-4;
  row.times_noise = 7;
  row.origin = true;
  row.a = query::ObservationSide{.l2 = 2.0, .shape = {8, 16}};
  row.b = query::ObservationSide{.l2 = 3.0};
  row.class_name = "LayerNorm";
  row.mode = "train";
  row.activation_b = "layers.2.ln";
  row.previous = "blocks.1";
  row.previous_distance = 1e-7;
  row.logical = true;
  row.ranks_a = {0};
  row.ranks_b = {0, 1};
  row.parts = {
      {.place = "[0:8, 6:12] of (8, 12)", .ranks_a = {0}, .ranks_b = {1}, .distance = 0.5}};
  row.parts_total = 2;
  return row;
}

// Root begins with the fields of a Divergence, so that clients can read one as the other.
TEST(RootWire, RootBeginsAsADivergence) {
  constexpr int kShared = 29;
  const auto *row = v1::Divergence::descriptor(), *root = v1::Root::descriptor();
  ASSERT_EQ(row->field_count(), kShared) << "a new field of Divergence belongs into Root, too";
  for (int i = 0; i < kShared; ++i) {
    const auto* of_row = row->field(i);
    const auto* of_root = root->FindFieldByNumber(of_row->number());
    ASSERT_NE(of_root, nullptr) << of_row->name();
    EXPECT_EQ(of_root->name(), of_row->name());
    EXPECT_EQ(of_root->type(), of_row->type()) << of_row->name();
    EXPECT_EQ(of_root->is_repeated(), of_row->is_repeated()) << of_row->name();
    EXPECT_EQ(of_root->has_presence(), of_row->has_presence()) << of_row->name();
    EXPECT_EQ(of_root->message_type(), of_row->message_type()) << of_row->name();
    EXPECT_EQ(of_root->enum_type(), of_row->enum_type()) << of_row->name();
  }
}

TEST(RootWire, FillsEveryField) {
  query::DiffReport report;
  query::Root root;
  root.at = Row();
  root.confidence = query::Confidence::kLikely;
  root.because = {"it differs", "its sisters do not"};
  root.alternatives = {Row()};
  root.alternatives[0].activation = "head";
  root.causes = {
      {.rule = "learning_rate",
       .text = "the learning rate differs",
       .confidence = query::Confidence::kCertain,
       .key = "lr/group0",
       .a = "0.1",
       .b = "0.2"},
      {.rule = "betas", .text = "betas differ", .confidence = query::Confidence::kCertain}};
  root.times_expected = 13;
  root.agreeing = 17;
  root.above_tolerance = 9;
  report.root = root;
  v1::DiffReport out;
  ToWire(report, out);
  ASSERT_TRUE(out.has_root());
  const auto* descriptor = v1::Root::descriptor();
  for (int i = 0; i < descriptor->field_count(); ++i) {
    const auto* field = descriptor->field(i);
    const auto* reflection = out.root().GetReflection();
    EXPECT_TRUE(field->is_repeated() ? reflection->FieldSize(out.root(), field) > 0
                                     : reflection->HasField(out.root(), field))
        << field->name();
  }
  const v1::Root& wire = out.root();
  EXPECT_EQ(wire.step(), 5u);
  EXPECT_EQ(wire.rank(), 3u);
  EXPECT_EQ(wire.rank_b(), 1u);
  EXPECT_EQ(wire.stage(), v1::STAGE_FORWARD);
  EXPECT_EQ(wire.activation(), "blocks.2.ln");
  EXPECT_EQ(wire.distance(), 1e-5);
  EXPECT_EQ(wire.b().l2(), 3);
  EXPECT_THAT(wire.ranks_a(), ElementsAre(0));
  ASSERT_EQ(wire.parts_size(), 1);
  EXPECT_EQ(wire.parts(0).place(), "[0:8, 6:12] of (8, 12)");
  EXPECT_THAT(wire.parts(0).ranks_b(), ElementsAre(1));
  EXPECT_EQ(wire.parts(0).distance(), 0.5);
  EXPECT_EQ(wire.parts_total(), 2u);
  EXPECT_THAT(wire.ranks_b(), ElementsAre(0, 1));
  EXPECT_THAT(wire.global_shape(), ElementsAre(8, 16));
  EXPECT_EQ(wire.confidence(), "likely");
  EXPECT_THAT(wire.because(), ElementsAre("it differs", "its sisters do not"));
  EXPECT_EQ(wire.alternatives(0).activation(), "head");
  EXPECT_EQ(wire.cause().rule(), "learning_rate");
  EXPECT_EQ(wire.cause().confidence(), "certain");
  EXPECT_EQ(wire.cause().key(), "lr/group0");
  EXPECT_EQ(wire.cause().a(), "0.1");
  EXPECT_EQ(wire.cause().b(), "0.2");
  ASSERT_EQ(wire.causes_size(), 2);
  EXPECT_EQ(wire.causes(0).SerializeAsString(), wire.cause().SerializeAsString());
  EXPECT_EQ(wire.causes(1).rule(), "betas");
  EXPECT_EQ(wire.times_expected(), 13);
  EXPECT_EQ(wire.agreeing(), 17u);
  EXPECT_EQ(wire.above_tolerance(), 9u);
  EXPECT_EQ(out.explained(), "");
}

TEST(RootWire, LeavesOutWhatIsNotKnown) {
  query::DiffReport report;
  report.root.emplace();
  v1::DiffReport out;
  ToWire(report, out);
  EXPECT_FALSE(out.root().has_cause());
  EXPECT_FALSE(out.root().has_times_expected());
  EXPECT_FALSE(out.root().has_agreeing());
  EXPECT_FALSE(out.root().has_above_tolerance());
  EXPECT_EQ(out.root().confidence(), "possible");
}

TEST(RootWire, SaysThatRoundingExplains) {
  query::DiffReport report;
  report.explained_by_rounding = true;
  v1::DiffReport out;
  ToWire(report, out);
  EXPECT_EQ(out.explained(), "rounding");
  EXPECT_FALSE(out.has_root());
}

}  // namespace
}  // namespace statcollect
