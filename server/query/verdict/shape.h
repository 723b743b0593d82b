// What the sketches of two tensors tell of where they differ, beside by how much.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_

namespace statcollect::query {

struct TensorPair;

// Whether the difference is a multiple of the tensor itself, as after a factor. Rounding has no
// direction: with 16 sums, one in a million independent differences looks like this.
bool IsFactor(const TensorPair& pair);

// Where rounding makes a maximum or a clamp choose another element, that element's gradient moves.
// A few such elements are in few of the sketch's sums, and what is computed differently is in all
// of them: the distance by the smaller sums, if they show far less, otherwise the pair's distance.
double WithoutMoved(const TensorPair& pair);

// Whether a difference is in more than a few sums. False if the sketches do not show it.
bool IsEverywhere(const TensorPair& pair);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_
