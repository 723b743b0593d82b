// Where two tensors differ, as far as their sketches show; not by how much.
#ifndef STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_
#define STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_

namespace statcollect::query {

struct TensorPair;

// Whether the difference is a multiple of the tensor itself, as after a factor. Rounding has no
// direction: with 16 sums, one in a million independent differences looks like this.
bool IsFactor(const TensorPair& pair);

// The distance without single elements that moved: by the sketch's smaller sums if those show far
// less, otherwise the pair's distance. Where rounding makes a maximum or a clamp choose another
// element, that element's gradient moves; a few such elements are in few of the sketch's sums, but
// a different computation is in all of them.
double WithoutMoved(const TensorPair& pair);

// Whether a difference is in more than a few sums. False if the sketches do not show it.
bool IsEverywhere(const TensorPair& pair);

}  // namespace statcollect::query

#endif  // STATCOLLECT_SERVER_QUERY_VERDICT_SHAPE_H_
