"""Rules of operators on images: resampling up, down and by a grid."""
