#include "common/capture_spec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace statcollect {
namespace {

using ::testing::HasSubstr;

TensorKey Key(const std::string& name, Kind kind = Kind::kOutput) {
  return {.name = name, .kind = kind};
}

TEST(CaptureSpec, TheShortFormMeansTheTensorItselfAndNotItsGradient) {
  const auto spec = CaptureSpec::Parse(" blocks.1.ln2@3 ");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_TRUE(spec->Matches(Key("blocks.1.ln2")));
  EXPECT_TRUE(spec->Matches(Key("blocks.1.ln2", Kind::kInspect)));
  EXPECT_TRUE(spec->Matches(Key("blocks.1.ln2", Kind::kWeight)));
  EXPECT_FALSE(spec->Matches(Key("blocks.1.ln2", Kind::kGradOutput)));
  EXPECT_FALSE(spec->Matches(Key("blocks.1.ln2", Kind::kInput)));
  EXPECT_FALSE(spec->Matches(Key("blocks.1.ln")));
  TensorKey later = Key("blocks.1.ln2");
  later.call = 1;
  EXPECT_FALSE(spec->Matches(later));
  later = Key("blocks.1.ln2");
  later.mode = Mode::kEval;
  EXPECT_FALSE(spec->Matches(later));
  EXPECT_TRUE(spec->steps.Contains(3));
  EXPECT_FALSE(spec->steps.Contains(4));
  EXPECT_EQ(spec->bytes_max, kCaptureBytesDefault);
}

TEST(CaptureSpec, OptionsNarrowIt) {
  const auto spec = CaptureSpec::Parse(
      "odd @ "
      "name@3-5,9:kind=grad_output,path=past.0,micro_batch=2,call=1,mode=eval,bytes_max=4096");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_EQ(spec->activation, "odd @ name");
  TensorKey key = Key("odd @ name", Kind::kGradOutput);
  key.output_path = "past.0";
  key.micro_batch = 2;
  key.call = 1;
  key.mode = Mode::kEval;
  EXPECT_TRUE(spec->Matches(key));
  key.output_path = "past.1";
  EXPECT_FALSE(spec->Matches(key));
  EXPECT_EQ(spec->bytes_max, 4096u);
  EXPECT_TRUE(spec->steps.Contains(9));
  EXPECT_FALSE(spec->steps.Contains(6));
}

TEST(CaptureSpec, ANameWithStarsIsAPatternAsOfExponents) {
  const auto spec = CaptureSpec::Parse("blocks.*.ln?@0:kind=weight_grad");
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_TRUE(spec->Matches(Key("blocks.10.ln2", Kind::kWeightGrad)));
  EXPECT_FALSE(spec->Matches(Key("blocks.10.ln2", Kind::kWeight)));
  EXPECT_FALSE(spec->Matches(Key("blocks.10.ln", Kind::kWeightGrad)));
  EXPECT_TRUE(CaptureSpec::Parse("*@0-")->Matches(Key("blocks.1.ln2")));
  EXPECT_FALSE(CaptureSpec::Parse("*@0-")->Matches(Key("blocks.1.ln2", Kind::kGradOutput)))
      << "without a kind, the tensor itself";
}

TEST(CaptureSpec, ARequestOfTheCollectorMeansTheNameAsItIs) {
  const auto spec = CaptureSpec::FromArguments({{"activation", "odd*name"}, {"steps", "3"}});
  ASSERT_TRUE(spec.ok()) << spec.status().message();
  EXPECT_TRUE(spec->Matches(Key("odd*name")));
  EXPECT_FALSE(spec->Matches(Key("odd-name")));
}

TEST(CaptureSpec, TextAndArgumentsSayTheSame) {
  for (const char* text : {"a@3", "*.fc?@0:kind=weight_grad", "a.b@0-9,every=3",
                           "x@7:kind=weight,path=0,micro_batch=1,call=2,mode=init,bytes_max=5"}) {
    const auto spec = CaptureSpec::Parse(text);
    ASSERT_TRUE(spec.ok()) << spec.status().message();
    EXPECT_EQ(spec->ToText(), text);
    const auto again = CaptureSpec::FromArguments(spec->ToArguments());
    ASSERT_TRUE(again.ok()) << again.status().message();
    EXPECT_EQ(again->ToText(), text);
    EXPECT_EQ(again->pattern, spec->pattern) << text;
  }
}

TEST(CaptureSpec, SaysWhatIsWrong) {
  const auto message = [](const char* text) {
    const auto spec = CaptureSpec::Parse(text);
    EXPECT_EQ(spec.status().code(), Code::kInvalidArgument) << text;
    return spec.status().message();
  };
  EXPECT_THAT(message("blocks.1.ln2"), HasSubstr("NAME@STEP"));
  EXPECT_THAT(message("@3"), HasSubstr("NAME@STEP"));
  EXPECT_THAT(message("a@"), HasSubstr("the step"));
  EXPECT_THAT(message("a@three"), HasSubstr("three"));
  EXPECT_THAT(message("a@3:kind=outputs"), HasSubstr("outputs"));
  EXPECT_THAT(message("a@3:kind=unspecified"), HasSubstr("expected output"));
  EXPECT_THAT(message("*@3:kind=weigth_grad"), HasSubstr("did you mean 'weight_grad'?"));
  EXPECT_THAT(message("a@3:kinds=output"), HasSubstr("did you mean 'kind'?"));
  EXPECT_THAT(message("a@3:mode=evel"), HasSubstr("did you mean 'eval'?"));
  EXPECT_THAT(message("a@3:kind"), HasSubstr("kind= with a value"));
  EXPECT_THAT(message("a@3:mode=test"), HasSubstr("train, eval or init"));
  EXPECT_THAT(message("a@3:size=4"), HasSubstr("bytes_max"));
  EXPECT_THAT(message("a@3:call=1,call=2"), HasSubstr("at most once"));
  EXPECT_THAT(message("a@3:call=-1"), HasSubstr("whole number"));
  EXPECT_THAT(message("a@3:bytes_max=0"), HasSubstr("1..67108864"));
  EXPECT_THAT(message("a@3:bytes_max=67108865"), HasSubstr("1..67108864"));
  EXPECT_THAT(message("a\x1b[2J@3"), HasSubstr("capture"));
  std::string many;
  for (std::size_t i = 0; i <= kCaptureSpecsMax; ++i) many += "a" + std::to_string(i) + "@1;";
  EXPECT_EQ(ParseCaptureSpecs(many).status().code(), Code::kInvalidArgument);
  EXPECT_EQ(ParseCaptureSpecs(" a@1 ; b@2:kind=input ;").value().size(), 2u);
  EXPECT_TRUE(ParseCaptureSpecs("").value().empty());
}

TEST(CaptureSpec, OfALargeTensorWholeRowsAreKept) {
  EXPECT_EQ(CapturedElements(DType::kF32, {4, 8}, 1000), 32u);
  EXPECT_EQ(CapturedElements(DType::kF32, {4, 8}, 100), 24u) << "three rows of 32 bytes";
  EXPECT_EQ(CapturedElements(DType::kF32, {4, 8}, 31), 7u) << "no row fits: elements";
  EXPECT_EQ(CapturedElements(DType::kF64, {}, 1), 0u) << "not even one element";
  EXPECT_EQ(CapturedElements(DType::kC128, {}, 16), 1u);
  EXPECT_EQ(CapturedElements(DType::kF32, {0, 8}, 1), 0u);
  EXPECT_EQ(CapturedElements(DType::kBool, {1 << 20, 1 << 20}, 16u << 20), 16u << 20);
}

}  // namespace
}  // namespace statcollect
